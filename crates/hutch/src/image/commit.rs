//! `hutch image commit`: the image of a container, with what the container has changed as one more layer.
//!
//! The upperdir is read as [`hutch_archive::pack`] reads every folder of a stranger, and the new image is imported like any
//! other, so that its layer is unpacked by a process without privileges before the image has its name.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use hutch_archive::{Notice, Packing};
use hutch_client::Wait;
use hutch_image::MAX_LAYER_BYTES;
use hutch_registry::ImageName;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use rustix::fs::{Mode, OFlags};

use super::progress::Meter;
use super::{ImageFolders, keep, print_imported, read};
use crate::cli::ImageCommitArguments;
use crate::client::{connect, plain, with_hint};

const PACKING: Packing =
    Packing { depth: 256, bytes: MAX_LAYER_BYTES, modes: 0o7777, owners: true, layer: true };
/// Copies of the layer and of the packed layers of its image that are on the disk at one time: the layer, the archive, the
/// blobs, and the unpacked layer.
const COPIES: u64 = 4;
/// Bytes that are written between two looks at the free space.
const STEP: u64 = 64 << 20;

/// A container whose changes are wanted.
#[derive(PartialEq, Eq)]
struct Changed {
    /// Identity of the container that runs, which a restart changes.
    container: String,
    /// Digest of the manifest of its image.
    image: String,
    /// Its upperdir.
    folder: PathBuf,
}

pub(super) fn commit(arguments: &ImageCommitArguments) -> anyhow::Result<()> {
    let name = ImageName::parse_imported(&arguments.image)?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "the folders of Sandboxes belong to root: run this command as root on the machine of `hutch up`"
    );
    let runtime = crate::runtime::runtime()?;
    let changed = runtime.block_on(find(arguments))?;
    let folders = ImageFolders::of(&arguments.data.data_dir)?;
    let store = folders.store()?;
    let catalog = folders.catalog();
    let (images, _) = catalog.list();
    let image = images.iter().find(|image| image.digest == changed.image).ok_or_else(|| {
        anyhow!(
            "the image of the container is {}, which was neither pulled nor imported: such an image has no layers",
            plain(&changed.image)
        )
    })?;
    let changes = hutch_node::measure(&changed.folder).bytes;
    let needed = changes.saturating_mul(COPIES).saturating_add(image.size.saturating_mul(2));
    hutch_image::check_room(&folders.folder, needed).with_context(|| format!("{needed} bytes are needed"))?;
    let created = Timestamp::now().to_string();
    let layer = pack(&changed.folder, &folders.folder, changes)?;
    runtime.block_on(check_unchanged(arguments, &changed))?;
    let size = image.size.saturating_add(layer.metadata()?.len());
    let mut archive = BufWriter::new(Guarded::new(&folders.folder)?);
    let meter = Meter::new("image");
    catalog.export_with_layer(image, layer, &created, meter.of(&mut archive, size))?;
    meter.end();
    let archive = archive.into_inner().map_err(io::IntoInnerError::into_error)?.file;
    // It has no other name, so that nothing of it stays when this process is killed.
    let path = format!("/proc/self/fd/{}", archive.as_raw_fd());
    let fetched = read(&folders, Path::new(&path), Some(&name))?;
    drop(archive);
    let (image, _) = keep(&store, &folders, fetched)?;
    print_imported(arguments.json, &[name], &image);
    Ok(())
}

async fn find(arguments: &ImageCommitArguments) -> anyhow::Result<Changed> {
    let sandboxes = connect(&arguments.place).await?;
    let mut silent = ();
    let mut wait = Wait::new(std::time::Duration::ZERO, &mut silent);
    let sandbox = sandboxes.find(&arguments.sandbox.name, &mut wait).await.map_err(with_hint)?;
    let target =
        sandboxes.container(&sandbox, arguments.container.name.as_deref()).await.map_err(with_hint)?;
    let pod = sandboxes.pod(&target).await?;
    let statuses = pod.status.iter().flat_map(|status| {
        let all = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ];
        all.into_iter().flatten().flatten()
    });
    let status = statuses.into_iter().find(|status| status.name == target.container);
    let image = status.map(|status| status.image_id.clone()).filter(|id| !id.is_empty());
    let running = status.filter(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
    let container = running.and_then(|status| status.container_id.clone()).unwrap_or_default();
    let image = image.with_context(|| format!("container {} has not started", target.container))?;
    ensure!(
        !container.is_empty() && pod.metadata.deletion_timestamp.is_none(),
        "container {} does not run",
        target.container
    );
    let folder = hutch_node::changes_folder(
        &arguments.data.data_dir,
        &pod.uid().unwrap_or_default(),
        &target.container,
    );
    let folder = folder.filter(|folder| folder.is_dir()).with_context(|| {
        format!(
            "--data-dir {}: not the data folder of the `hutch up` that runs Pod {}, or its root is read-only",
            arguments.data.data_dir.display(),
            target.pod
        )
    })?;
    Ok(Changed { container, image, folder })
}

/// Checks that the container whose changes were packed still runs: those of one that has ended are removed.
async fn check_unchanged(arguments: &ImageCommitArguments, packed: &Changed) -> anyhow::Result<()> {
    let now = find(arguments).await?;
    ensure!(now == *packed, "the container ended meanwhile, and its changes with it");
    Ok(())
}

/// Packs an upperdir of about `size` bytes into a file without a name.
fn pack(changes: &Path, folder: &Path, size: u64) -> anyhow::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(changes, flags, Mode::empty());
    let opened = opened.context("the changes of the container")?;
    let meter = Meter::new("changes");
    let output = meter.of(BufWriter::new(Guarded::new(folder)?), size);
    let mut builder = hutch_archive::Builder::new(output);
    let mut left_out = 0u64;
    hutch_archive::append_folder(opened.as_fd(), Path::new("."), PACKING, &mut builder)?;
    hutch_archive::pack(opened, Path::new(""), PACKING, &mut builder, |path, notice| {
        match notice {
            Notice::Special => left_out += 1,
            Notice::Shorter => {
                eprintln!("{}: became shorter; zeros follow", plain(&path.display().to_string()));
            }
        }
        Ok(())
    })?;
    let layer = builder.into_inner()?.into_inner();
    meter.end();
    let layer = layer.into_inner().map_err(io::IntoInnerError::into_error)?;
    let mut file = layer.file;
    file.rewind()?;
    if left_out > 0 {
        eprintln!("{left_out} sockets, pipes, devices and names that begin with .wh. were left out");
    }
    Ok(file)
}

/// A file without a name that is written. It ends before the disk is full: a file may announce more than it has.
struct Guarded {
    file: File,
    folder: PathBuf,
    written: u64,
}

impl Guarded {
    fn new(folder: &Path) -> anyhow::Result<Guarded> {
        let file = tempfile::tempfile_in(folder).with_context(|| folder.display().to_string())?;
        Ok(Guarded { file, folder: folder.to_owned(), written: 0 })
    }
}

impl Write for Guarded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.written + bytes.len() as u64;
        if self.written == 0 || written / STEP != self.written / STEP {
            hutch_image::check_room(&self.folder, STEP)?;
        }
        let count = self.file.write(bytes)?;
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
