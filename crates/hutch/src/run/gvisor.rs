//! `hutch run --isolation gvisor`: runsc with a bundle of its own, inside a jail that bounds its life, its limits and
//! its network.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hutch_image::remove_tree;
use hutch_jail::run::{RunOptions, Serve, run_with_listeners};
use hutch_jail::{
    CheckedFolder, Ended, Error, Link, Mount, MountSource, Outcome, Process, Profile, Spec, User,
};
use hutch_node::oci::{Bundle, Runsc, mounts_around};
use rustix::io::Errno;
use rustix::termios::isatty;
use serde_json::Value;

/// Folder of bundles and of runsc's state while a command runs: one folder for each run, with the id of the process.
const FOLDER: &str = "/var/lib/hutch/run";
const PREFIX: &str = "gvisor-";
/// Exit status of runsc when it fails itself.
const FAILED: i32 = 128;

/// Runs the command of a native description in gVisor. The inner result has the errors of the jail.
pub(super) fn run(
    spec: &Spec,
    process: &Process,
    options: &RunOptions,
    serve: &mut dyn Serve,
) -> anyhow::Result<super::Ran> {
    if !rustix::process::geteuid().is_root() {
        bail!("--isolation gvisor needs root: run as root, or use the native jail (--isolation hutch)");
    }
    let runsc = find()?;
    let folder = Scratch::new().with_context(|| format!("a folder below {FOLDER}"))?;
    let [rootfs, assembly, log] = ["rootfs", "mounts", "log"].map(|name| folder.path.join(name));
    let mut around = mounts_around(&spec.mounts, &assembly);
    let mut layers = spec.root.layers.clone();
    if let [only] = &layers[..] {
        let shown = folder.path.join("layer");
        let source = CheckedFolder::look(only).with_context(|| only.display().to_string())?;
        let source = MountSource::Beneath { folder: source, path: PathBuf::new() };
        around.push(Mount { source, target: shown.clone(), read_only: true });
        layers = vec![shown];
    }
    // Without them, runsc creates missing mount points in the caller's folder.
    let points = folder.path.join("points");
    make_points(&points, &spec.mounts).with_context(|| points.display().to_string())?;
    layers.push(points);
    if !spec.links.is_empty() {
        let links = folder.path.join("links");
        make_links(&links, &spec.links).with_context(|| links.display().to_string())?;
        layers.insert(0, links);
    }
    let terminal = options.capture.is_none() && isatty(rustix::stdio::stdin());
    let bundle = Bundle {
        rootfs: &rootfs,
        read_only: true,
        hostname: &spec.hostname,
        argv: &process.argv,
        env: &process.env,
        cwd: &process.cwd,
        user: &process.user,
        terminal,
        mounts: &spec.mounts,
        capabilities: spec.capabilities,
        assembly: &assembly,
    };
    folder.write("bundle/config.json", &bundle.config().to_string()).context("the bundle for runsc")?;
    let [bundle, log_file] = [folder.path.join("bundle"), log.clone()].map(|path| path.display().to_string());
    let words = ["--log", &log_file, "run", "--bundle", &bundle, &spec.id];
    let argv = runsc.argv(&folder.path.join("state"), &words);
    let argv = stacked(&layers, &rootfs, argv)?;
    let outer = Spec {
        profile: Profile::Runtime,
        limits: Runsc::limits(spec.limits),
        mounts: around,
        ..spec.clone()
    };
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    let env = vec![("PATH".to_owned(), path), ("HOME".to_owned(), "/".to_owned())];
    let outer_process = Process { argv, env, cwd: "/".into(), terminal, user: User::default() };
    let ran = run_with_listeners(&outer, &outer_process, options, serve);
    if let Ok(Outcome { ended: Ended::Exited(FAILED), .. }) = &ran
        && let Some(error) = not_started(&std::fs::read_to_string(log).unwrap_or_default(), &process.argv[0])
    {
        return Ok(Err(error));
    }
    Ok(ran)
}

/// Finds a runsc that Hutch can use.
fn find() -> anyhow::Result<Runsc> {
    let Some(runsc) = Runsc::find() else {
        bail!(
            "--isolation gvisor needs runsc on the PATH: install it (gvisor.dev/docs/user_guide/install), or use --isolation hutch"
        );
    };
    if let Some(problem) = runsc.problem() {
        bail!(
            "--isolation gvisor: {problem}: see gvisor.dev/docs/user_guide/install, or use --isolation hutch"
        );
    }
    Ok(runsc)
}

/// Returns the failed start that runsc has logged, if it has. A command may exit with the same status.
fn not_started(log: &str, program: &str) -> Option<Error> {
    let entry: Value = log.lines().find_map(|line| serde_json::from_str(line).ok())?;
    let text = entry["msg"].as_str().filter(|_| entry["level"] == "error")?;
    let (errno, reason) = match text {
        _ if text.ends_with("permission denied") => (Errno::ACCESS, "Permission denied"),
        _ if text.ends_with("no such file or directory") => (Errno::NOENT, "command not found"),
        _ => return None,
    };
    Some(Error::NotStarted { program: program.to_owned(), errno: errno.into(), reason: reason.to_owned() })
}

/// Creates a layer that holds only mount points. An entry of the same name in another layer hides one.
fn make_points(points: &Path, mounts: &[Mount]) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o755);
    let fixed = ["/proc", "/dev", "/sys"].map(Path::new);
    // What is mounted within a folder of the caller is there already.
    let within_a_folder = |mount: &&Mount| {
        let holds = |other: &Mount| {
            let is_folder =
                matches!(&other.source, MountSource::Beneath { path, .. } if path == Path::new(""));
            is_folder && other.target != mount.target && mount.target.starts_with(&other.target)
        };
        mounts.iter().any(holds)
    };
    let at = |target: &Path| points.join(target.strip_prefix("/").unwrap_or(target));
    for target in fixed {
        builder.create(at(target))?;
    }
    for mount in mounts.iter().filter(|mount| !within_a_folder(mount)) {
        let point = at(&mount.target);
        match (&mount.source, point.parent()) {
            (MountSource::Beneath { path, .. }, Some(parent)) if path != Path::new("") => {
                builder.create(parent)?;
                std::fs::File::create(point)?;
            }
            (MountSource::Hidden { folder: false }, Some(parent)) => {
                builder.create(parent)?;
                std::fs::File::create(point)?;
            }
            _ => builder.create(point)?,
        }
    }
    Ok(())
}

/// Creates the topmost layer, which holds only links.
fn make_links(folder: &Path, links: &[Link]) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o755).create(folder)?;
    links.iter().try_for_each(|link| std::os::unix::fs::symlink(&link.target, folder.join(&link.name)))
}

/// Returns the command behind a mount of the layers, which is visible only in the jail.
fn stacked(layers: &[PathBuf], rootfs: &Path, command: Vec<String>) -> anyhow::Result<Vec<String>> {
    let names: Vec<String> = layers.iter().map(|layer| layer.display().to_string()).collect();
    if let Some(odd) = names.iter().find(|name| name.contains([',', ':', '\\'])) {
        bail!("{odd}: a path with a comma, a colon or a backslash cannot be stacked");
    }
    let script = "mount -t overlay overlay -o \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let mut argv: Vec<String> = ["/bin/sh", "-c", script, "sh"].map(str::to_owned).into();
    argv.push(format!("lowerdir={}", names.join(":")));
    argv.push(rootfs.display().to_string());
    argv.extend(command);
    Ok(argv)
}

/// A folder that is removed at the end. The next process removes that of a killed one.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> std::io::Result<Scratch> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(FOLDER)?;
        sweep();
        let path = Path::new(FOLDER).join(format!("{PREFIX}{}", std::process::id()));
        for folder in ["bundle", "state", "rootfs"] {
            builder.create(path.join(folder))?;
        }
        Ok(Scratch { path })
    }

    /// Writes a file of mode 0600, because the environment may hold secrets and arguments are visible in the process list.
    fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.path.join(name))?;
        file.write_all(text.as_bytes())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next run removes the rest.
        let _ = remove_tree(&self.path);
    }
}

/// Removes folders of processes that have ended.
fn sweep() {
    for entry in std::fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = remove_tree(&entry.path());
        }
    }
}
