//! Runs a command in a jail that shows this machine's `/usr` read-only and an empty `/tmp`:
//! `cargo run -p hutch-jail --example run -- COMMAND [ARG]...`

use std::path::PathBuf;
use std::time::Duration;

use hutch_jail::{
    Ids, Limits, Mount, MountSource, Network, NetworkPlan, Process, Profile, Root, RunOptions, Spec, Upper,
    User,
};

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut take = |flag: &str| {
        let at = arguments.iter().position(|a| a == flag).filter(|at| at + 1 < arguments.len())?;
        arguments.remove(at);
        Some(arguments.remove(at))
    };
    let timeout = take("--timeout-ms").map(|ms| Duration::from_millis(ms.parse().expect("milliseconds")));
    let memory_bytes = take("--memory").map(|bytes| bytes.parse().expect("bytes"));
    let capture = take("--capture").map(|bytes| bytes.parse().expect("bytes"));
    let workspace = take("--workspace").map(PathBuf::from);
    let mut mounts: Vec<Mount> =
        ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache"]
            .into_iter()
            .map(PathBuf::from)
            .filter(|path| path.exists())
            .map(|path| Mount { source: MountSource::Bind(path.clone()), target: path, read_only: true })
            .collect();
    let source = MountSource::Tmpfs { bytes: 64 << 20, mode: 0o1777 };
    mounts.push(Mount { source, target: "/tmp".into(), read_only: false });
    let deny_set_id_bits = workspace.is_some();
    if let Some(folder) = workspace {
        let source = MountSource::Bind(folder);
        mounts.push(Mount { source, target: "/workspace".into(), read_only: false });
    }
    let root = rustix::process::geteuid().is_root();
    let spec = Spec {
        id: "example".into(),
        hostname: "jail".into(),
        profile: Profile::Native,
        root: Root { layers: vec![], upper: Upper::ReadOnly },
        mounts,
        ids: if root { Ids::Range { base: 2_000_000 } } else { Ids::Caller },
        network: Network::New(NetworkPlan::closed(Vec::new())),
        capabilities: hutch_jail::Capabilities::NONE,
        limits: Limits { memory_bytes, ..Limits::default() },
        deny_set_id_bits,
        links: vec![],
        files: hutch_jail::FileRules::default(),
        runtime_root: None,
        freezable: false,
    };
    let process = Process {
        argv: arguments,
        env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("TERM".into(), "xterm".into())],
        cwd: "/".into(),
        terminal: false,
        user: User::default(),
    };
    let options = RunOptions { timeout, capture, grace: Duration::from_millis(500) };
    match hutch_jail::run(&spec, &process, &options) {
        Ok(outcome) => {
            if std::env::var_os("JAIL_VERBOSE").is_some() {
                eprintln!("{outcome:?}");
            }
            std::process::exit(outcome.ended.status())
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(125)
        }
    }
}
