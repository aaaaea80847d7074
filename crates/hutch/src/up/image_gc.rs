//! Garbage collection of images by use of the disk, with the marks of a kubelet.
//!
//! Images of the administrator stay: Pods need them without a registry. Their unpacked layers can be made again.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use hutch_image::{Catalog, Freed, Listed};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Client};

use super::NODE;
use crate::cli::UpArguments;
use crate::folder::DataFolder;
use crate::image::{IMAGES, PULLED, PULLED_FOR_PODS};

/// Interval of collections, as a kubelet's.
const INTERVAL: Duration = Duration::from_secs(300);

/// Marks and folders of the collection.
#[derive(Debug, Clone)]
pub(super) struct ImageGc {
    high: u8,
    low: u8,
    least_age: Duration,
    /// Start of this server: before it, no use is known.
    started: SystemTime,
    data: PathBuf,
}

/// Result of a collection.
#[derive(Default)]
struct Collected {
    /// Messages about what was removed.
    removed: Vec<String>,
    /// Use of the disk in the end, if it is still too high.
    still: Option<u8>,
}

impl ImageGc {
    pub(super) fn new(arguments: &UpArguments, data: &DataFolder) -> anyhow::Result<ImageGc> {
        let (high, low) = (arguments.image_gc_high_threshold, arguments.image_gc_low_threshold);
        ensure!(low < high, "--image-gc-low-threshold {low} is not below --image-gc-high-threshold {high}");
        let least_age = arguments.minimum_image_ttl_duration;
        let started = SystemTime::now();
        Ok(ImageGc { high, low, least_age, started, data: data.path().to_owned() })
    }

    /// Collects again and again.
    pub(super) async fn run(self, client: Client) {
        // Until then every image is too new.
        tokio::time::sleep(self.least_age).await;
        let mut still = None;
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let gc = self.clone();
            match tokio::task::spawn_blocking(move || gc.collect()).await {
                Ok(Ok(collected)) => {
                    let is_new = still.is_none();
                    still = collected.still;
                    self.report(&client, collected, is_new).await;
                }
                Ok(Err(error)) => tracing::warn!("failed to collect images: {error:#}"),
                Err(error) => tracing::warn!(%error, "failed to collect images"),
            }
        }
    }

    async fn report(&self, client: &Client, collected: Collected, is_new: bool) {
        for message in collected.removed {
            event(client, "Normal", "ImageRemoved", message).await;
        }
        if let Some(usage) = collected.still.filter(|_| is_new) {
            let message = format!(
                "Failed to garbage collect required amount of images: the disk is used by {usage} %, above {} %",
                self.low
            );
            tracing::warn!(usage, low = self.low, "images in use or of the administrator keep the disk full");
            event(client, "Warning", "FreeDiskSpaceFailed", message).await;
        }
    }

    fn usage(&self) -> std::io::Result<u8> {
        let space = rustix::fs::statvfs(&self.data)?;
        let total = space.f_blocks.max(1);
        // Rounded up: what is above a mark counts.
        Ok(u8::try_from((total.saturating_sub(space.f_bavail) * 100).div_ceil(total)).unwrap_or(100))
    }

    fn collect(&self) -> anyhow::Result<Collected> {
        let mut collected = Collected::default();
        let folder = |name: &str| self.data.join(name);
        let catalog = Catalog::new(folder(IMAGES), vec![folder(PULLED), folder(PULLED_FOR_PODS)]);
        let before = self.usage()?;
        if self.high == 100 || before < self.high {
            return Ok(collected);
        }
        tracing::info!(usage = before, high = self.high, low = self.low, "collecting unused images");
        let (images, damaged) = catalog.list();
        damaged.iter().for_each(|error| tracing::warn!(%error, "images of a folder are unknown"));
        log(&mut collected, "content of no image", Ok(catalog.prune()?));
        let images = unused(images, self.least_age, self.started, SystemTime::now());
        for image in &images {
            if self.usage()? <= self.low {
                return Ok(collected);
            }
            let name = image.names.first().unwrap_or(&image.digest);
            match is_for_pods(image) {
                true => log(&mut collected, name, catalog.collect(image)),
                false => log(&mut collected, &format!("layers of {name}"), Ok(catalog.remove_layers(image))),
            }
        }
        let usage = self.usage()?;
        collected.still = (usage > self.low).then_some(usage);
        Ok(collected)
    }
}

fn is_for_pods(image: &Listed) -> bool {
    image.folder.ends_with(PULLED_FOR_PODS)
}

/// Returns images in the order in which they are removed: those of Pods first, the least recently used first.
fn unused(mut images: Vec<Listed>, least_age: Duration, started: SystemTime, now: SystemTime) -> Vec<Listed> {
    let age = |image: &Listed| {
        let used = image.last_used.unwrap_or(SystemTime::UNIX_EPOCH);
        now.duration_since(used).unwrap_or_default()
    };
    // A use that ended with a killed server is unknown, so no age is higher than that of this one.
    let is_old = now.duration_since(started).unwrap_or_default() >= least_age;
    images.retain(|image| is_old && image.users.is_empty() && age(image) >= least_age);
    images.sort_by_key(|image| (!is_for_pods(image), std::cmp::Reverse(age(image))));
    images
}

fn log(collected: &mut Collected, what: &str, freed: Result<Freed, hutch_image::Error>) {
    match freed {
        Ok(freed) => {
            for why in &freed.failed {
                tracing::warn!(why, "content of an image stays");
            }
            if !freed.removed.is_empty() {
                tracing::info!(image = what, bytes = freed.bytes, "removed unused image");
                collected.removed.push(format!("Removed {what:?} to free {} bytes", freed.bytes));
            }
        }
        // It was used meanwhile.
        Err(error @ hutch_image::Error::InUse { .. }) => tracing::debug!(%error, "image stays"),
        Err(error) => tracing::warn!(%error, image = what, "failed to remove unused image"),
    }
}

/// Writes an event on the Node.
async fn event(client: &Client, kind: &str, reason: &str, message: String) {
    let now = Time(k8s_openapi::jiff::Timestamp::now());
    let event = Event {
        metadata: ObjectMeta {
            // As a kubelet names its events.
            name: Some(format!("{NODE}.{:x}", now.0.as_nanosecond())),
            namespace: Some("default".into()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(NODE.into()),
            uid: Some(NODE.into()),
            ..ObjectReference::default()
        },
        type_: Some(kind.into()),
        reason: Some(reason.into()),
        message: Some(message.chars().take(1000).collect()),
        source: Some(EventSource { component: Some("kubelet".into()), host: Some(NODE.into()) }),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        ..Event::default()
    };
    let (api, params) = (Api::<Event>::namespaced(client.clone(), "default"), PostParams::default());
    if let Err(error) = api.create(&params, &event).await {
        tracing::warn!(%error, reason, "failed to write an event");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn least_recently_used_images_of_pods_go_first_and_those_in_use_never() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
        let image = |name: &str, folder: &str, age: u64, users: &[u32]| Listed {
            names: vec![name.to_owned()],
            digest: String::new(),
            pulled: String::new(),
            folder: folder.into(),
            size: 0,
            config_digest: String::new(),
            created: None,
            platform: String::new(),
            layers: Vec::new(),
            last_used: Some(now - Duration::from_secs(age)),
            users: users.to_vec(),
            problem: None,
        };
        let images = vec![
            image("admin", "/d/pulled", 9000, &[]),
            image("new", "/d/pulled-for-pods", 10, &[]),
            image("late", "/d/pulled-for-pods", 300, &[]),
            image("used", "/d/pulled-for-pods", 5000, &[7]),
            image("early", "/d/pulled-for-pods", 4000, &[]),
        ];
        let least = Duration::from_secs(120);
        assert!(unused(images.clone(), least, now - Duration::from_secs(60), now).is_empty());
        let order = unused(images, least, now - least, now);
        let names: Vec<&str> = order.iter().map(|image| image.names[0].as_str()).collect();
        assert_eq!(names, ["early", "late", "admin"]);
    }

    /// Imports an image for Pods with one file of so many bytes, and uses it.
    fn add(data: &Path, name: &str, bytes: usize) -> hutch_image::Resolved {
        let tar = |files: &[(&str, &[u8])]| {
            let mut archive = tar::Builder::new(Vec::new());
            for (name, content) in files {
                let mut header = tar::Header::new_gnu();
                header.set_size(content.len() as u64);
                header.set_mode(0o644);
                header.set_uid(0);
                header.set_gid(0);
                archive.append_data(&mut header, name, *content).unwrap();
            }
            archive.into_inner().unwrap()
        };
        let layer = tar(&[(name, &vec![name.as_bytes()[0]; bytes])]);
        let digest: String = {
            use sha2::Digest;
            sha2::Sha256::digest(&layer).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
        let config = json!({"architecture": architecture, "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]}});
        let list = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
        let (config, list) = (config.to_string(), list.to_string());
        let files =
            [("layer.tar", &*layer), ("config.json", config.as_bytes()), ("manifest.json", list.as_bytes())];
        let archive = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(archive.path(), tar(&files)).unwrap();
        let folder = data.join(PULLED_FOR_PODS);
        let fetched = hutch_registry::import(&folder, archive.path(), None, &|_, _| ()).unwrap();
        let full = fetched.name().to_string();
        fetched.keep().unwrap();
        let store = hutch_image::Store::open(&data.join(IMAGES)).unwrap();
        store.resolve_pulled(&folder, &full).unwrap()
    }

    /// Says that the last use of an image was so many seconds ago.
    fn age(catalog: &Catalog, data: &Path, name: &str, seconds: u64) {
        let image = catalog.list().0.into_iter().find(|image| image.names[0].contains(name)).unwrap();
        let file = data.join(IMAGES).join("uses").join(format!("image-{}", image.digest.replace(':', "-")));
        let used = SystemTime::now() - Duration::from_secs(seconds);
        std::fs::File::options().write(true).open(file).unwrap().set_modified(used).unwrap();
    }

    #[test]
    fn collection_removes_the_least_recently_used_images_down_to_the_low_mark_and_no_more() {
        hutch_testkit::require!(root);
        let disk = hutch_testkit::disk::Disk::new(64 << 20, &["mkfs.ext4", "-q", "-F", "-m", "0"]);
        let data = disk.path().join("data");
        let catalog = Catalog::new(data.join(IMAGES), vec![data.join(PULLED_FOR_PODS)]);
        let _held = add(&data, "used", 4 << 20);
        age(&catalog, &data, "used", 900);
        for (name, seconds) in [("late", 100), ("early", 500), ("middle", 300), ("second", 400)] {
            drop(add(&data, name, 4 << 20));
            age(&catalog, &data, name, seconds);
        }
        // What the archives have besides the images.
        catalog.prune().unwrap();
        let started = SystemTime::now() - Duration::from_secs(1000);
        let mut gc = ImageGc { high: 100, low: 0, least_age: Duration::from_secs(60), started, data };
        let usage = gc.usage().unwrap();
        gc.high = usage + 1;
        assert!(gc.collect().unwrap().removed.is_empty(), "the disk is not as full as the high mark");
        // An image takes an eighth of the disk, so that the second removal reaches this mark.
        (gc.high, gc.low) = (usage, usage - 18);
        let collected = gc.collect().unwrap();
        assert_eq!((collected.removed.len(), collected.still), (2, None), "{:?}", collected.removed);
        assert!(gc.usage().unwrap() <= gc.low);
        let names = || {
            let images = catalog.list().0.into_iter();
            images.map(|image| image.names[0].replace("hutch.local/", "")).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["late:latest", "middle:latest", "used:latest"]);
        // What cannot be reached is reported, and what is in use stays.
        (gc.high, gc.low) = (1, 0);
        assert!(gc.collect().unwrap().still.is_some());
        assert_eq!(names(), ["used:latest"]);
    }
}
