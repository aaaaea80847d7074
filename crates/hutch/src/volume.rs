//! `hutch volume`: persistent volumes of `hutch up`, which are plain folders of its data folder.
//!
//! The API server says which claims there are. The folder of a claim follows from its namespace and uid, so no answer of a
//! server leads outside of the data folder.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use hutch_archive::{Notice, Packing};
use hutch_image::PathSegment;
use hutch_node::measure;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use rustix::fs::{Mode, OFlags};

use crate::cli::{
    DataDir, Place, VolumeArguments, VolumeCommand, VolumeCopyArguments, VolumeDuArguments,
    VolumeListArguments,
};
use crate::client::{finish, plain};
use crate::cluster;

/// Maximum folders within each other in an exported volume.
const DEPTH: usize = 256;
const PACKING: Packing = Packing { depth: DEPTH, bytes: u64::MAX, modes: 0o7777, owners: true, layer: false };
const VOLUMES: PathSegment = PathSegment::fixed("volumes");

/// Runs a subcommand of `hutch volume`.
pub(crate) fn main(arguments: &VolumeArguments) -> ExitCode {
    match &arguments.command {
        VolumeCommand::List(arguments) => finish("volume list", 1, list(arguments)),
        VolumeCommand::Du(arguments) => finish("volume du", 1, du(arguments)),
        VolumeCommand::Export(arguments) => finish("volume export", 1, export(arguments)),
        VolumeCommand::Import(arguments) => finish("volume import", 1, import(arguments)),
    }
}

/// Returns a client and the namespace.
async fn connect(place: &Place) -> anyhow::Result<(Client, String)> {
    let config = cluster::config(place.kubeconfig.as_deref()).await?;
    let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let url = config.cluster_url.clone();
    let client = Client::try_from(config).with_context(|| format!("the API server {url}"))?;
    Ok((client, namespace))
}

async fn list(arguments: &VolumeListArguments) -> anyhow::Result<u8> {
    let (client, namespace) = connect(&arguments.place).await?;
    let (claims, pods): (Api<PersistentVolumeClaim>, Api<Pod>) = match arguments.all_namespaces {
        true => (Api::all(client.clone()), Api::all(client)),
        false => (Api::namespaced(client.clone(), &namespace), Api::namespaced(client, &namespace)),
    };
    let every = ListParams::default();
    let (claims, pods) = tokio::try_join!(claims.list(&every), pods.list(&every))?;
    let mut text = format!(
        "{:<20} {:<24} {:<10} {:<20} {:<20} PODS\n",
        "NAMESPACE", "NAME", "CAPACITY", "MODES", "STATUS"
    );
    for claim in &claims {
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
        text.push_str(&plain(&format!(
            "{:<20} {:<24} {:<10} {:<20} {:<20} {}",
            claim.namespace().unwrap_or_default(),
            claim.name_any(),
            capacity_text(claim),
            modes.join(","),
            status(claim),
            users(claim, &pods.items).join(","),
        )));
        text.push('\n');
    }
    io::stdout().write_all(text.as_bytes())?;
    Ok(0)
}

fn capacity_text(claim: &PersistentVolumeClaim) -> String {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|requests| requests.get("storage")).map_or("-".into(), |size| size.0.clone())
}

/// Returns the phase of a claim, or that its volume is over its capacity.
fn status(claim: &PersistentVolumeClaim) -> String {
    let Some(status) = &claim.status else { return "-".into() };
    match hutch_node::is_over_capacity(claim) {
        true => "VolumeOverCapacity".into(),
        false => status.phase.clone().unwrap_or_else(|| "-".into()),
    }
}

/// Returns the names of the Pods that use a claim and have not ended.
fn users(claim: &PersistentVolumeClaim, pods: &[Pod]) -> Vec<String> {
    let name = claim.name_any();
    let uses = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        pod.namespace() == claim.namespace()
            && !matches!(phase, Some("Succeeded" | "Failed"))
            && volumes.any(|v| v.persistent_volume_claim.as_ref().is_some_and(|c| c.claim_name == name))
    };
    pods.iter().filter(uses).map(ResourceExt::name_any).collect()
}

async fn du(arguments: &VolumeDuArguments) -> anyhow::Result<u8> {
    let (client, namespace) = connect(&arguments.place).await?;
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client, &namespace);
    let claims = match arguments.claims.is_empty() {
        true => api.list(&ListParams::default()).await?.items,
        false => {
            let mut claims = Vec::new();
            for name in &arguments.claims {
                claims.push(api.get(name).await.with_context(|| format!("claim {name}"))?);
            }
            claims
        }
    };
    println!("{:<24} {:<10} {:>16} {:>10}", "NAME", "CAPACITY", "BYTES", "FILES");
    for claim in &claims {
        let folder = folder(&arguments.data, claim)?;
        // A claim that no Pod has used yet has no folder.
        let usage = measure(&folder);
        let (name, capacity) = (claim.name_any(), capacity_text(claim));
        println!("{}", plain(&format!("{name:<24} {capacity:<10} {:>16} {:>10}", usage.bytes, usage.inodes)));
    }
    Ok(0)
}

/// Returns the folder of a claim.
fn folder(data: &DataDir, claim: &PersistentVolumeClaim) -> anyhow::Result<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        bail!("the folders of volumes belong to root: run this command as root on the machine of `hutch up`");
    }
    let volumes = VOLUMES.below(&data.data_dir);
    if !volumes.is_dir() {
        bail!("--data-dir {}: not the data folder of a `hutch up`", data.data_dir.display());
    }
    hutch_node::volume_folder(&data.data_dir, claim)
        .ok_or_else(|| anyhow!("claim {}: it has an unusable namespace or uid", claim.name_any()))
}

/// Returns a claim and its folder.
async fn find(arguments: &VolumeCopyArguments) -> anyhow::Result<(PersistentVolumeClaim, PathBuf)> {
    let (client, namespace) = connect(&arguments.place).await?;
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client, &namespace);
    let claim = api.get(&arguments.claim).await.with_context(|| format!("claim {}", arguments.claim))?;
    let folder = folder(&arguments.data, &claim)?;
    Ok((claim, folder))
}

/// Refuses a volume in memory that is not there: what would be written beneath its mount point would be on the disk.
fn check_mounted(claim: &PersistentVolumeClaim, folder: &Path) -> anyhow::Result<()> {
    if hutch_node::is_in_memory(claim) && !folder.is_dir() {
        bail!(
            "claim {}: its volume is in memory and not mounted here: the claim is not bound, or its `hutch up` does not run in \
             this mount namespace",
            claim.name_any()
        );
    }
    Ok(())
}

fn open(folder: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty());
    opened.map_err(|errno| match errno {
        rustix::io::Errno::NOENT => {
            anyhow!("the volume has no folder here: no Pod of this machine has used it")
        }
        errno => anyhow!("the folder of the volume: {errno}"),
    })
}

async fn export(arguments: &VolumeCopyArguments) -> anyhow::Result<u8> {
    let (claim, path) = find(arguments).await?;
    check_mounted(&claim, &path)?;
    let folder = open(&path)?;
    let file = arguments.file.clone();
    let to: Box<dyn Write> = match file == Path::new("-") {
        true if io::stdout().is_terminal() => {
            bail!("the archive would be written to a terminal: name a FILE")
        }
        true => Box::new(io::stdout().lock()),
        false => {
            let mut options = File::options();
            // Other users of the machine do not read what is in the volume.
            let made = options.write(true).create_new(true).mode(0o600).open(&file);
            Box::new(made.with_context(|| file.display().to_string())?)
        }
    };
    let mut builder = hutch_archive::Builder::new(BufWriter::new(to));
    let mut left_out = 0u64;
    hutch_archive::pack(folder, Path::new(""), PACKING, &mut builder, |path, notice| {
        match notice {
            Notice::Special => left_out += 1,
            Notice::Shorter => {
                eprintln!("{}: became shorter; zeros follow", plain(&path.display().to_string()))
            }
        }
        Ok(())
    })?;
    builder.into_inner()?.flush()?;
    if left_out > 0 {
        eprintln!("{left_out} sockets, pipes and devices were left out");
    }
    Ok(0)
}

async fn import(arguments: &VolumeCopyArguments) -> anyhow::Result<u8> {
    let (claim, path) = find(arguments).await?;
    let capacity = hutch_node::capacity(&claim);
    // A claim that no Pod has used yet has no folder.
    check_mounted(&claim, &path)?;
    if !hutch_node::is_in_memory(&claim) {
        hutch_node::make_volume(&path, capacity).context("the folder of the volume")?;
    }
    let room = match capacity {
        Some(capacity) => capacity.saturating_sub(measure(&path).bytes),
        None => u64::MAX,
    };
    let from: Box<dyn Read> = match arguments.file == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(&arguments.file).with_context(|| arguments.file.display().to_string())?),
    };
    hutch_image::import(io::BufReader::new(from), &path, room).map_err(|error| match error {
        hutch_image::Error::TooLarge { limit, .. } => {
            anyhow!(
                "the archive is larger than {limit}, for which the volume has room; what was written stays"
            )
        }
        hutch_image::Error::HostileEntry { entry, reason } => anyhow!("entry {entry:?}: {reason}"),
        error => error.into(),
    })?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(change: serde_json::Value) -> PersistentVolumeClaim {
        let mut value = json!({"metadata": {"name": "c", "namespace": "default", "uid": "1-2"},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Bound"}});
        for (key, new) in change.as_object().unwrap() {
            value["metadata"][key] = new.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn folder_follows_from_checked_names_only() {
        hutch_testkit::require!(root);
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir { data_dir: dir.path().into() };
        assert!(folder(&data, &claim(json!({}))).unwrap_err().to_string().contains("--data-dir"));
        std::fs::create_dir(VOLUMES.below(dir.path())).unwrap();
        let found = folder(&data, &claim(json!({}))).unwrap();
        assert_eq!(found.strip_prefix(dir.path()).unwrap(), Path::new("volumes/default/1-2"));
        for hostile in [json!({"uid": "../.."}), json!({"namespace": ".."}), json!({"uid": ""})] {
            assert!(folder(&data, &claim(hostile)).is_err());
        }
    }

    #[test]
    fn pods_that_use_a_claim_are_named() {
        let pod = |name: &str, namespace: &str, claim: &str, phase: &str| -> Pod {
            let value = json!({"metadata": {"name": name, "namespace": namespace}, "status": {"phase": phase},
                "spec": {"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}});
            serde_json::from_value(value).unwrap()
        };
        let pods = [
            pod("one", "default", "c", "Running"),
            pod("other", "default", "d", "Running"),
            pod("far", "away", "c", "Running"),
            pod("ended", "default", "c", "Succeeded"),
        ];
        assert_eq!(users(&claim(json!({})), &pods), ["one"]);
        assert_eq!(status(&claim(json!({}))), "Bound");
        assert_eq!(capacity_text(&claim(json!({}))), "1Gi");
    }
}
