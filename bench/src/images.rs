//! Measures images from a registry of this machine: pulls beside other tools, Pods from a present image, and the memory
//! of many sandboxes of one image.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt, TryStreamExt};
use hutch_testkit::{on_path, tool};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::claims::NAMESPACE;
use crate::machine::binary;
use crate::server::Server;
use crate::stats::{Samples, millis};

/// Bytes of the packed layers.
const PACKED: usize = 150_000_000;
const LAYERS: usize = 8;
/// Files with more bytes are left out.
const LARGE: u64 = 10 << 20;
const ROUNDS: usize = 5;
const PODS: usize = 200;
/// Sandboxes whose memory is measured.
const SHARING: usize = 50;
const WAIT_LIMIT: Duration = Duration::from_secs(180);
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Folders of this machine of which the image is made, in order.
const SOURCES: [&str; 4] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/python3.11", "/usr/bin", "/usr/share"];

/// Measures and prints the tables.
pub(crate) fn run() -> anyhow::Result<()> {
    let registry = Registry::start()?;
    println!(
        "\n### Pull and unpack of an image with {LAYERS} layers, {} MB packed, {} MB unpacked, interleaved\n",
        registry.packed / 1_000_000,
        registry.unpacked / 1_000_000
    );
    pulls(&registry)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(pods(&registry))
}

/// A registry with the image.
struct Registry {
    /// Ends when it is dropped.
    running: hutch_testkit::registry::Registry,
    name: String,
    packed: usize,
    unpacked: u64,
}

impl Registry {
    fn start() -> anyhow::Result<Registry> {
        tool("docker-registry").context("needs docker-registry (scripts/install-test-tools)")?;
        let folder = tempfile::tempdir()?;
        let (packed, unpacked) = fill(&folder.path().join("content/docker/registry/v2"))?;
        let running = hutch_testkit::registry::Registry::start_plain(folder);
        let name = format!("{}/bench/app:v1", running.host);
        Ok(Registry { running, name, packed, unpacked })
    }
}

/// Writes the image where the registry stores its content. Returns the bytes of its packed and unpacked layers.
fn fill(content: &Path) -> anyhow::Result<(usize, u64)> {
    let store = |bytes: &[u8]| -> anyhow::Result<(String, usize)> {
        let hex = hex(Sha256::new_with_prefix(bytes));
        let write = |path: PathBuf, bytes: &[u8]| -> anyhow::Result<()> {
            fs::create_dir_all(path.parent().context("a folder")?)?;
            Ok(fs::write(path, bytes)?)
        };
        let digest = format!("sha256:{hex}");
        write(content.join(format!("blobs/sha256/{}/{hex}/data", &hex[..2])), bytes)?;
        for kind in ["_layers", "_manifests/revisions"] {
            let link = content.join(format!("repositories/bench/app/{kind}/sha256/{hex}/link"));
            write(link, digest.as_bytes())?;
        }
        Ok((digest, bytes.len()))
    };
    let (mut layers, mut diff_ids, mut packed, mut unpacked) = (Vec::new(), Vec::new(), 0, 0);
    let mut sources = sources()?.into_iter();
    for number in 0..LAYERS {
        let layer = Layer::of(&mut sources, number == 0)?;
        let (digest, size) = store(&layer.packed)?;
        layers.push(json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size,
        }));
        diff_ids.push(layer.diff_id);
        packed += size;
        unpacked += layer.unpacked;
    }
    let config = json!({
        "architecture": if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" }, "os": "linux",
        "config": {"Cmd": ["/usr/bin/python3.11", "-c", "import json, time; time.sleep(1e6)"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let (digest, size) = store(config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "layers": layers,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": size},
    });
    let (digest, _) = store(manifest.to_string().as_bytes())?;
    let tag = content.join("repositories/bench/app/_manifests/tags/v1/current");
    fs::create_dir_all(&tag)?;
    fs::write(tag.join("link"), digest)?;
    Ok((packed, unpacked))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the files and links of the sources, those of libraries first.
fn sources() -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for source in SOURCES {
        let mut folders = vec![PathBuf::from(source)];
        while let Some(folder) = folders.pop() {
            let mut entries: Vec<_> = fs::read_dir(&folder)
                .with_context(|| folder.display().to_string())?
                .map_while(Result::ok)
                .map(|entry| entry.path())
                .collect();
            entries.sort();
            for path in entries {
                match path.symlink_metadata()?.is_dir() {
                    // Below libraries only the libraries themselves, so that the first layers have what programs need.
                    true if source.contains("-linux-gnu") => {}
                    true => folders.push(path),
                    false => found.push(path),
                }
            }
        }
    }
    Ok(found)
}

/// A packed layer.
struct Layer {
    packed: Vec<u8>,
    diff_id: String,
    unpacked: u64,
}

impl Layer {
    /// Takes files until the layer has its share of the bytes. The first one has the links of a merged `/usr`.
    fn of(sources: &mut impl Iterator<Item = PathBuf>, first: bool) -> anyhow::Result<Layer> {
        let both = Both { hash: Sha256::new(), packed: GzEncoder::new(Vec::new(), Compression::default()) };
        let mut archive = tar::Builder::new(both);
        archive.follow_symlinks(false);
        if first {
            for link in ["bin", "lib", "lib64"] {
                let mut header = tar::Header::new_gnu();
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                header.set_mode(0o777);
                header.set_uid(0);
                header.set_gid(0);
                header.set_mtime(0);
                archive.append_link(&mut header, link, format!("usr/{link}"))?;
            }
            archive
                .append_path_with_name("/usr/lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2")?;
        }
        let mut unpacked = 0;
        while archive.get_ref().packed.get_ref().len() < PACKED / LAYERS {
            let Some(path) = sources.next() else { bail!("this machine has too few files for the image") };
            let metadata = path.symlink_metadata()?;
            // Set-id programs stay outside, and large files, so that all layers have about the same size.
            if metadata.permissions().mode() & 0o6000 != 0 || metadata.len() > LARGE {
                continue;
            }
            archive.append_path_with_name(&path, path.strip_prefix("/")?)?;
            unpacked += metadata.len();
        }
        let Both { hash, packed } = archive.into_inner()?;
        Ok(Layer { packed: packed.finish()?, diff_id: format!("sha256:{}", hex(hash)), unpacked })
    }
}

/// Hashes and packs what is written.
struct Both {
    hash: Sha256,
    packed: GzEncoder<Vec<u8>>,
}

impl Write for Both {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.hash.update(bytes);
        self.packed.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A tool that pulls and unpacks into a folder: the lines of its commands, where `DIR` is that folder.
struct Contender {
    name: &'static str,
    lines: Vec<String>,
    samples: Samples,
}

fn pulls(registry: &Registry) -> anyhow::Result<()> {
    let image = &registry.name;
    let hutch = binary()?.display().to_string();
    let mut contenders = vec![(
        "hutch image pull",
        vec![format!("{hutch} image pull --plain-http --data-dir DIR/data {image}")],
    )];
    if on_path("skopeo").is_some() && on_path("umoci").is_some() {
        contenders.push((
            "skopeo copy, umoci unpack",
            vec![
                format!("skopeo copy --quiet --src-tls-verify=false docker://{image} oci:DIR/layout:v1"),
                "umoci --log=error unpack --image DIR/layout:v1 DIR/bundle".to_owned(),
            ],
        ));
    }
    if on_path("buildah").is_some() {
        contenders.push((
            "buildah pull",
            vec![format!(
                "buildah --root DIR/root --runroot DIR/run --storage-driver overlay pull --quiet --tls-verify=false {image}"
            )],
        ));
    }
    let mut contenders: Vec<_> = contenders
        .into_iter()
        .map(|(name, lines)| Contender { name, lines, samples: Samples::default() })
        .collect();
    for round in 0..=ROUNDS {
        for contender in &mut contenders {
            let time = contender.once(registry.running.folder())?;
            // The first round fills the page cache.
            if round > 0 {
                contender.samples.add(time);
            }
        }
    }
    println!("| | p50 s | worst s | n | of hutch's p50 |\n|---|---|---|---|---|");
    let own = contenders[0].samples.p50().as_secs_f64();
    for Contender { name, samples, .. } in &contenders {
        let (p50, worst) = (samples.p50().as_secs_f64(), samples.percentile(1.0).as_secs_f64());
        println!("| {name} | {p50:.2} | {worst:.2} | {} | {:.2} |", samples.len(), p50 / own);
    }
    Ok(())
}

impl Contender {
    fn once(&self, scratch: &Path) -> anyhow::Result<Duration> {
        let folder = scratch.join("pulled");
        fs::create_dir(&folder)?;
        // What an earlier one wrote is not on its account.
        rustix::fs::sync();
        let started = Instant::now();
        for line in &self.lines {
            let line = line.replace("DIR", &folder.display().to_string());
            let mut words = line.split_whitespace();
            let output = Command::new(words.next().context("a program")?)
                .args(words)
                .stdin(Stdio::null())
                .output()
                .with_context(|| self.name)?;
            if !output.status.success() {
                bail!("{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
            }
        }
        let time = started.elapsed();
        // buildah leaves a mount.
        let _ = Command::new("umount").arg(folder.join("root/overlay")).stderr(Stdio::null()).status();
        fs::remove_dir_all(&folder)?;
        Ok(time)
    }
}

async fn pods(registry: &Registry) -> anyhow::Result<()> {
    let server = Server::start()?;
    let mut pull = Command::new(binary()?);
    pull.args(["image", "pull", "--plain-http", &registry.name, "--data-dir"]);
    let output = pull.arg(server.folder().join("data")).output()?;
    if !output.status.success() {
        bail!("hutch image pull: {}", String::from_utf8_lossy(&output.stderr));
    }
    let pods: Api<Pod> = Api::namespaced(server.client().await?, NAMESPACE);
    let images = [("`hutch/host`", "hutch/host"), ("the pulled image", registry.name.as_str())];
    let mut samples = [Samples::default(), Samples::default()];
    for round in 0..=PODS {
        // Both orders, because the first one of a round follows a pause.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for number in order {
            let name = format!("pod-{round}");
            let params = WatchParams::default().fields(&format!("metadata.name={name}"));
            let mut events = pods.watch(&params, "0").await?.boxed();
            let began = Instant::now();
            start(&pods, &name, images[number].1).await?;
            ready(&mut events).await?;
            if round > 0 {
                samples[number].add(began.elapsed());
            }
            pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
            while pods.get_opt(&name).await?.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    println!(
        "\n### From the creation of a Pod to Ready, interleaved\n\n| Image | p50 ms | p99 ms | n |\n|---|---|---|---|"
    );
    for ((name, _), samples) in images.iter().zip(&samples) {
        println!("| {name} | {} | {} | {} |", millis(samples.p50()), millis(samples.p99()), samples.len());
    }
    let names: Vec<String> = (0..SHARING).map(|number| format!("sharing-{number}")).collect();
    for name in &names {
        start(&pods, name, &registry.name).await?;
    }
    wait(&pods, &names).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (rss, pss, processes) = memory("import json, time")?;
    println!("\n### {processes} sandboxes of one image, a Python interpreter in each\n");
    println!("| | MiB each |\n|---|---|\n| Rss | {:.1} |\n| Pss | {:.1} |", rss, pss);
    Ok(())
}

async fn start(pods: &Api<Pod>, name: &str, image: &str) -> anyhow::Result<()> {
    let pod: Value = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": image,
            "command": ["/usr/bin/python3.11", "-c", "import json, time; time.sleep(1e6)"],
        }]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|list| list.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Waits until a watched Pod is Ready.
async fn ready(
    events: &mut (impl Stream<Item = kube::Result<WatchEvent<Pod>>> + Unpin),
) -> anyhow::Result<()> {
    let wait = async {
        while let Some(event) = events.try_next().await? {
            if matches!(event, WatchEvent::Added(pod) | WatchEvent::Modified(pod) if is_ready(&pod)) {
                return Ok(());
            }
        }
        bail!("the watch ended before the pod was Ready")
    };
    tokio::time::timeout(WAIT_LIMIT, wait).await?
}

/// Waits until all are Ready.
async fn wait(pods: &Api<Pod>, names: &[String]) -> anyhow::Result<()> {
    let started = Instant::now();
    for name in names {
        loop {
            if is_ready(&pods.get(name).await?) {
                break;
            }
            if started.elapsed() > WAIT_LIMIT {
                bail!("pod {name} is not Ready after {WAIT_LIMIT:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(())
}

/// Returns the mean Rss and Pss in MiB of the processes whose arguments have the text, and their number.
fn memory(argument: &str) -> anyhow::Result<(f64, f64, usize)> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    let mut processes = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let path = entry.path();
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        if !line.starts_with(b"/usr/bin/python3.11") || !String::from_utf8_lossy(&line).contains(argument) {
            continue;
        }
        let Ok(rollup) = fs::read_to_string(path.join("smaps_rollup")) else { continue };
        processes += 1;
        for field in ["Rss:", "Pss:"] {
            let line = rollup.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
            let kib: f64 = line.split_whitespace().next().unwrap_or_default().parse()?;
            *sums.entry(field).or_default() += kib / 1024.0;
        }
    }
    let mean = |field: &str| sums.get(field).copied().unwrap_or_default() / processes as f64;
    Ok((mean("Rss:"), mean("Pss:"), processes))
}
