//! Measures one command in a fresh jail, and in the other sandboxes that are installed.
//!
//! Every round starts each once, so that noise of the machine affects all equally; compare only ratios.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use hutch_testkit::on_path;

use crate::machine::{before, binary};
use crate::stats::{Samples, millis};

const ROUNDS: usize = 300;
/// runsc and runc are slower by an order of magnitude; their medians settle sooner.
const SLOW_ROUNDS: usize = 30;

/// Reads a file of the machine as its standard input.
const FROM_FILE: &str = "hutch run < file";

struct Contender {
    name: &'static str,
    command: Vec<String>,
    /// Standard input [default: `/dev/null`].
    input: Option<PathBuf>,
    rounds: usize,
    samples: Samples,
}

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let scratch = tempfile::tempdir().context("a scratch folder")?;
    let mut contenders = contenders(scratch.path())?;
    for round in 0..ROUNDS {
        for contender in &mut contenders {
            if round < contender.rounds {
                contender.once()?;
            }
        }
    }
    let baseline = contenders.iter().find(|c| c.name.starts_with("bwrap")).map(|c| c.samples.p50());
    println!("\n### Start: one `true` in a fresh jail, interleaved\n");
    println!("| | p50 ms | p99 ms | n | of bwrap's p50 |\n|---|---|---|---|---|");
    for contender in &contenders {
        let p50 = contender.samples.p50();
        let ratio =
            baseline.map_or("-".to_owned(), |b| format!("{:.2}", p50.as_secs_f64() / b.as_secs_f64()));
        let p99 = millis(contender.samples.p99());
        println!("| {} | {} | {p99} | {} | {ratio} |", contender.name, millis(p50), contender.samples.len());
    }
    Ok(())
}

impl Contender {
    fn once(&mut self) -> anyhow::Result<()> {
        let input = match &self.input {
            Some(file) => Stdio::from(std::fs::File::open(file).with_context(|| file.display().to_string())?),
            None => Stdio::null(),
        };
        let started = Instant::now();
        let output = Command::new(&self.command[0])
            .args(&self.command[1..])
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .status()
            .with_context(|| self.name)?;
        self.samples.add(started.elapsed());
        if !output.success() {
            bail!("{} ended with {output}", self.name);
        }
        Ok(())
    }
}

fn contenders(scratch: &Path) -> anyhow::Result<Vec<Contender>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let hutch = binary()?.display().to_string();
    let folder = |name: &str| -> anyhow::Result<String> {
        let path = scratch.join(name);
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(path.display().to_string())
    };
    let (workspace, rootfs) = (folder("workspace")?, folder("rootfs")?);
    fill_rootfs(Path::new(&rootfs))?;
    let run = |hutch: &str, options: &str| words(&format!("{hutch} run {options} -- /usr/bin/true"));
    let hutch_run = |options: &str| run(&hutch, options);
    let mut list = vec![
        ("no jail", words("/usr/bin/true"), ROUNDS),
        ("hutch run", hutch_run(""), ROUNDS),
        ("hutch run --workspace", hutch_run(&format!("--workspace {workspace}")), ROUNDS),
        ("hutch run --rootfs", hutch_run(&format!("--rootfs {rootfs}")), ROUNDS),
        ("hutch run --allow", hutch_run("--allow a.example"), ROUNDS),
        ("hutch run --policy, requests read", hutch_run(&reading(scratch)?), ROUNDS),
        (FROM_FILE, hutch_run(""), ROUNDS),
    ];
    if let Some(before) = before() {
        let before = before.display().to_string();
        list.push(("hutch run, before", run(&before, ""), ROUNDS));
        let options = format!("--workspace {workspace}");
        list.push(("hutch run --workspace, before", run(&before, &options), ROUNDS));
    }
    if let Some(bwrap) = on_path("bwrap") {
        list.push(("bwrap --unshare-all", words(&bwrap_line(&bwrap.display().to_string())), ROUNDS));
    }
    if on_path("runc").is_some() {
        let bundle = bundle(&scratch.join("runc"))?;
        let root = scratch.join("runc-state").display().to_string();
        list.push((
            "runc run",
            words(&format!("runc --root {root} run --bundle {bundle} bench-runc")),
            SLOW_ROUNDS,
        ));
    }
    if let Some(runsc) = on_path("runsc") {
        let line = format!("{} --network=none --ignore-cgroups do /usr/bin/true", runsc.display());
        list.push(("runsc do", words(&line), SLOW_ROUNDS));
        list.push((
            "hutch run --isolation gvisor",
            words(&format!("{hutch} run --isolation gvisor -- /usr/bin/true")),
            SLOW_ROUNDS,
        ));
    }
    Ok(list
        .into_iter()
        .map(|(name, command, rounds)| {
            let input = (name == FROM_FILE).then(|| "/etc/passwd".into());
            Contender { name, command, input, rounds, samples: Samples::default() }
        })
        .collect())
}

/// Returns the flag for a policy whose rule reads requests, so that the proxy needs an authority.
fn reading(scratch: &Path) -> anyhow::Result<String> {
    let policy = serde_json::json!({
        "apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {"name": "bench"},
        "spec": {"egress": {"rules": [{"name": "a", "hosts": ["a.example"], "http": [{"methods": ["GET"]}]}]}},
    });
    let file = scratch.join("policy.json");
    std::fs::write(&file, policy.to_string()).with_context(|| file.display().to_string())?;
    Ok(format!("--policy {}", file.display()))
}

/// Returns the mounts of `hutch/host`, read-only: `/usr` and its links, `/proc`, `/dev`, an empty `/tmp`.
fn bwrap_line(bwrap: &str) -> String {
    let mut line = format!(
        "{bwrap} --unshare-all --ro-bind /usr /usr --proc /proc --dev /dev --tmpfs /tmp --tmpfs /workspace"
    );
    for link in ["bin", "sbin", "lib", "lib64", "lib32"] {
        if Path::new("/").join(link).is_symlink() {
            line.push_str(&format!(" --symlink usr/{link} /{link}"));
        }
    }
    line.push_str(
        " --ro-bind /etc/ld.so.cache /etc/ld.so.cache --ro-bind /etc/passwd /etc/passwd --cap-drop ALL",
    );
    line.push_str(" --die-with-parent --new-session --hostname sandbox --unshare-user --chdir /workspace -- /usr/bin/true");
    line
}

/// Creates a root file system with `true`, its libraries and the mount points.
fn fill_rootfs(rootfs: &Path) -> anyhow::Result<()> {
    let script = "for file in /usr/bin/true $(ldd /usr/bin/true | grep -o '/[^ ]*'); do \
         mkdir -p \"$0/$(dirname $file)\"; cp -L $file \"$0$file\"; done; cd $0 && mkdir proc dev tmp workspace";
    let made = Command::new("sh").arg("-c").arg(script).arg(rootfs).status().context("sh")?;
    if !made.success() {
        bail!("{script} ended with {made}");
    }
    Ok(())
}

/// Creates an OCI bundle whose root is this machine's `/usr`.
fn bundle(folder: &Path) -> anyhow::Result<String> {
    let rootfs = folder.join("rootfs");
    std::fs::create_dir_all(rootfs.join("usr"))?;
    let spec = Command::new("runc").arg("spec").current_dir(folder).status().context("runc spec")?;
    if !spec.success() {
        bail!("runc spec ended with {spec}");
    }
    let file = folder.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = serde_json::json!(["/usr/bin/true"]);
    for link in ["bin", "sbin", "lib", "lib64"] {
        let _ = std::os::unix::fs::symlink(format!("usr/{link}"), rootfs.join(link));
    }
    let mounts = config["mounts"].as_array_mut().context("runc's own mounts")?;
    mounts.retain(|mount| mount["type"] != "cgroup");
    mounts.push(serde_json::json!({
        "destination": "/usr", "source": "/usr", "type": "bind", "options": ["bind", "ro"]
    }));
    std::fs::write(&file, serde_json::to_vec(&config)?)?;
    Ok(folder.display().to_string())
}
