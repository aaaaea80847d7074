//! Folders of the node on this machine. Names in them are [`PathSegment`]s, so no path leads out of the data folder.
//!
//! Below a Pod's folder there is one folder for each class of names, so a name of one class never meets another:
//! `logs`, `roots`, `env` and `messages` hold a folder for each container, `generations` a file, `volumes` and `given` one folder
//! for each volume, `files` what the node itself names. Containers write in `roots` and `volumes`, and a file in `messages`;
//! everything else is written by the node alone.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use hutch_image::PathSegment;
use rustix::fs::{Mode, OFlags};

use crate::Error;

const PODS: PathSegment = PathSegment::fixed("pods");
const VOLUMES: PathSegment = PathSegment::fixed("volumes");
const MEMORY: PathSegment = PathSegment::fixed("memory");
const MEMORY_VOLUMES: PathSegment = PathSegment::fixed("memory-volumes");
const DATA: PathSegment = PathSegment::fixed("data");
const SNAPSHOTS: PathSegment = PathSegment::fixed("snapshots");
const GENERATION: PathSegment = PathSegment::fixed("generation");
const IMAGES: PathSegment = PathSegment::fixed("images");
const RUN: PathSegment = PathSegment::fixed("run");
const JAILS: PathSegment = PathSegment::fixed("jails");
const LOGS: PathSegment = PathSegment::fixed("logs");
const ROOTS: PathSegment = PathSegment::fixed("roots");
const ENV: PathSegment = PathSegment::fixed("env");
const MESSAGES: PathSegment = PathSegment::fixed("messages");
const GENERATIONS: PathSegment = PathSegment::fixed("generations");
const GIVEN: PathSegment = PathSegment::fixed("given");
const FILES: PathSegment = PathSegment::fixed("files");
const HOSTS: PathSegment = PathSegment::fixed("hosts");
const RESOLV_CONF: PathSegment = PathSegment::fixed("resolv.conf");
const BUNDLE: PathSegment = PathSegment::fixed("ca-bundle.crt");

/// Folders of the node.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// Folder of all Pods.
    pub(crate) pods: PathBuf,
    /// Folder of all persistent volumes.
    pub(crate) volumes: PathBuf,
    /// Folder of what Pods keep in memory: a file system of its own from the first volume there on.
    pub(crate) memory: PathBuf,
    /// Folder of all persistent volumes in memory: a file system of its own from the first one on.
    pub(crate) memory_volumes: PathBuf,
    /// Folder of the images of snapshots.
    pub(crate) snapshots: PathBuf,
    /// File with the number of the last restore.
    pub(crate) generation: PathBuf,
    /// Folder of images.
    pub(crate) images: PathBuf,
    /// Folder of the warden.
    pub(crate) jails: PathBuf,
}

impl Places {
    /// Makes the folders below the data folder, and takes other users' rights from existing ones.
    pub(crate) fn make(data: &Path) -> Result<Places, Error> {
        let run = RUN.below(data);
        let places = Places {
            pods: PODS.below(data),
            volumes: volumes(data),
            memory: MEMORY.below(data),
            memory_volumes: memory_volumes(data),
            snapshots: SNAPSHOTS.below(data),
            generation: GENERATION.below(data),
            images: IMAGES.below(data),
            jails: JAILS.below(&run),
        };
        make_closed(data, PASSABLE).map_err(Error::folder("make", data))?;
        let volumes = [&places.volumes, &places.memory, &places.memory_volumes];
        let own = [&places.pods, &places.snapshots, &places.images, &run, &places.jails];
        for folder in volumes.into_iter().chain(own) {
            make_private(folder).map_err(Error::folder("make", folder))?;
        }
        Ok(places)
    }

    /// Folders of one Pod.
    pub(crate) fn pod(&self, uid: &PathSegment) -> PodPlaces {
        let all_memory = self.memory.clone();
        PodPlaces { disk: uid.below(&self.pods), memory: uid.below(&self.memory), all_memory }
    }
}

/// Returns the folder of all persistent volumes on the disk.
pub(crate) fn volumes(data: &Path) -> PathBuf {
    VOLUMES.below(data)
}

/// Returns the folder of all persistent volumes in memory.
pub(crate) fn memory_volumes(data: &Path) -> PathBuf {
    MEMORY_VOLUMES.below(data)
}

/// Returns where the file system of a persistent volume in memory is mounted.
pub(crate) fn memory_mount(volumes: &Path, namespace: &PathSegment, uid: &PathSegment) -> PathBuf {
    uid.below(&namespace.below(volumes))
}

/// Returns the folder in that file system which Pods see.
pub(crate) fn memory_folder(volumes: &Path, namespace: &PathSegment, uid: &PathSegment) -> PathBuf {
    DATA.below(&memory_mount(volumes, namespace, uid))
}

/// Returns the folder for the writes of a container; `None` if a name would lead elsewhere.
pub(crate) fn root_of(data: &Path, pod_uid: &str, container: &str) -> Option<PathBuf> {
    let (uid, container) = (PathSegment::label(pod_uid)?, PathSegment::label(container)?);
    Some(container.below(&ROOTS.below(&uid.below(&PODS.below(data)))))
}

/// Folders of one Pod.
#[derive(Debug, Clone)]
pub(crate) struct PodPlaces {
    /// Folder of everything on disk.
    pub(crate) disk: PathBuf,
    /// Folder of everything in memory.
    pub(crate) memory: PathBuf,
    /// The same of all Pods.
    pub(crate) all_memory: PathBuf,
}

impl PodPlaces {
    /// Logs of all lives of a container. Logs of an earlier version of Hutch lie elsewhere and are not found.
    pub(crate) fn logs(&self, container: &PathSegment) -> PathBuf {
        container.below(&LOGS.below(&self.disk))
    }

    /// Folder for the writes of a container outside of its volumes.
    pub(crate) fn root(&self, container: &PathSegment) -> PathBuf {
        container.below(&ROOTS.below(&self.disk))
    }

    /// Variables that come while a container runs.
    pub(crate) fn late_env(&self, container: &PathSegment) -> PathBuf {
        container.below(&ENV.below(&self.disk))
    }

    /// The termination message of a container.
    pub(crate) fn message(&self, container: &PathSegment) -> PathBuf {
        container.below(&MESSAGES.below(&self.disk))
    }

    /// The number of the restore of a container.
    pub(crate) fn generation(&self, container: &PathSegment) -> PathBuf {
        container.below(&GENERATIONS.below(&self.disk))
    }

    /// `/etc/hosts` of the Pod.
    pub(crate) fn hosts(&self) -> PathBuf {
        HOSTS.below(&self.files())
    }

    /// `/etc/resolv.conf` of the Pod.
    pub(crate) fn resolv_conf(&self) -> PathBuf {
        RESOLV_CONF.below(&self.files())
    }

    /// Certificates that programs in the Pod trust.
    pub(crate) fn bundle(&self) -> PathBuf {
        BUNDLE.below(&self.files())
    }

    /// Files of the node for the whole Pod.
    pub(crate) fn files(&self) -> PathBuf {
        FILES.below(&self.disk)
    }

    /// Folders in which a folder may have a limit.
    pub(crate) fn limited(&self) -> [PathBuf; 3] {
        [ROOTS, VOLUMES, MESSAGES].map(|class| class.below(&self.disk))
    }

    /// A volume on disk that containers write.
    pub(crate) fn written_volume(&self, volume: &PathSegment) -> PathBuf {
        volume.below(&VOLUMES.below(&self.disk))
    }

    /// A volume on disk that only the node writes.
    pub(crate) fn given_volume(&self, volume: &PathSegment) -> PathBuf {
        volume.below(&GIVEN.below(&self.disk))
    }

    /// Folder of the file systems of volumes in memory that containers write.
    pub(crate) fn all_written_memory(&self) -> PathBuf {
        VOLUMES.below(&self.memory)
    }

    /// Where the file system of such a volume is mounted.
    pub(crate) fn written_memory(&self, volume: &PathSegment) -> PathBuf {
        volume.below(&self.all_written_memory())
    }

    /// Where the file system of the volumes in memory that only the node writes is mounted.
    pub(crate) fn given_memory(&self) -> PathBuf {
        GIVEN.below(&self.memory)
    }
}

/// The log of one life of a container.
pub(crate) fn log_file(logs: &Path, life: u32) -> PathBuf {
    // A number and an extension are one component.
    PathSegment::new(format!("{life}.log")).map_or_else(|| logs.to_owned(), |name| name.below(logs))
}

/// Mode of the data folder: the group of the front may pass through it.
const PASSABLE: u32 = 0o710;

/// Creates a folder with mode 0700, or removes the rights of others from the existing one, which must belong to this user.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    make_closed(path, 0o700)
}

/// Creates a folder with mode 0700. An existing one must belong to this user; it gets that mode too if it grants more than
/// `most`.
fn make_closed(path: &Path, most: u32) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&folder)?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if found.st_mode & 0o777 & !most != 0 {
        rustix::fs::fchmod(&folder, Mode::RWXU)?;
    }
    Ok(())
}

/// Where earlier versions kept what is in memory: below a folder that every user can write. Only a folder of this user
/// is one of theirs.
pub(crate) fn older_memory(data: &Path) -> Option<PathBuf> {
    const SHARED_MEMORY: &str = "/dev/shm";
    let mut hasher = DefaultHasher::new();
    std::fs::canonicalize(data).unwrap_or_else(|_| data.into()).hash(&mut hasher);
    let path = PathSegment::new(format!("hutch-{:016x}", hasher.finish()))?.below(Path::new(SHARED_MEMORY));
    let found = std::fs::symlink_metadata(&path).ok()?;
    (found.is_dir() && found.uid() == rustix::process::geteuid().as_raw()).then_some(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn existing_folder_of_mode_0755_is_tightened() {
        let dir = tempfile::tempdir().unwrap();
        let open = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let places = Places::make(dir.path()).unwrap();
        for folder in [dir.path(), &places.pods, &places.memory, &places.images, &places.jails] {
            assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{folder:?}");
        }
    }

    #[test]
    fn linked_folder_is_refused() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), PODS.below(dir.path())).unwrap();
        assert!(Places::make(dir.path()).is_err());
    }

    #[test]
    fn names_of_two_classes_never_meet() {
        let pod =
            PodPlaces { disk: "/pods/u".into(), memory: "/memory/u".into(), all_memory: "/memory".into() };
        for name in ["hosts", "logs", "roots", "env", "messages", "generations", "volumes", "given", "files"]
        {
            let name = PathSegment::label(name).unwrap();
            let mut all = [
                pod.logs(&name),
                pod.root(&name),
                pod.late_env(&name),
                pod.message(&name),
                pod.generation(&name),
                pod.hosts(),
                pod.resolv_conf(),
                pod.written_volume(&name),
                pod.given_volume(&name),
                pod.written_memory(&name),
                name.below(&pod.given_memory()),
            ];
            all.sort();
            for pair in all.windows(2) {
                assert!(!pair[1].starts_with(&pair[0]), "{pair:?}");
            }
        }
    }
}
