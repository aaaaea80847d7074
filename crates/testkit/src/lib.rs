//! Needs of tests, declared in one way: [`require!`].
//!
//! A test whose need is not met says so on standard output in a form that `cargo xtask test` counts, and returns.
//! It is then *skipped*, which is neither passed nor failed. With `HUTCH_TEST_REQUIRE_ALL=1` a missing need is a failure
//! instead.

#[cfg(feature = "cluster")]
pub mod cluster;
pub mod disk;
pub mod hostile;
#[cfg(feature = "registry")]
pub mod registry;
pub mod swap;
pub mod wait;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies a program to be executed.
///
/// This process never has the copy open for writing: a child that another test starts would inherit that for a moment, in which
/// the copy cannot be executed.
///
/// # Panics
/// When it cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    disk::run(Command::new("cp").arg("--preserve=mode").args([from.as_ref(), to.as_ref()]));
}

/// Writes a script to be executed, with mode 0755. As with [`copy_program`], this process never has it open.
///
/// # Panics
/// When it cannot be written.
pub fn write_program(text: &str, to: impl AsRef<Path>) {
    let script = "printf %s \"$0\" > \"$1\" && chmod 755 \"$1\"";
    disk::run(Command::new("sh").args(["-c", script, text]).arg(to.as_ref()));
}

/// Something of the machine that a test needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Effective uid 0.
    Root,
    /// User namespaces for the user that runs the test.
    UserNamespaces,
    /// gVisor's `runsc` on the path.
    Runsc,
    /// `kubectl` on the path.
    Kubectl,
    /// `kubectl-1.24` on the path, which reads OpenAPI v2.
    OldKubectl,
    /// `python3` on the path.
    Python,
    /// `bwrap` on the path.
    Bwrap,
    /// The programs of a Kubernetes control plane, on the path or in this repository's `.tools/bin`.
    Kubernetes,
    /// `curl` on the path.
    Curl,
    /// `buildah` on the path.
    Buildah,
    /// `strace` on the path, and the right to trace.
    Strace,
    /// `docker-registry`, on the path or as `scripts/install-test-tools` brings it.
    DockerRegistry,
    /// A root file system of Debian with services, as `scripts/install-test-tools` brings it, and `dpkg-deb` on the path.
    Stock,
    /// The program of `tests/go`, which `scripts/install-test-tools` builds.
    GoClients,
    /// HashiCorp's `vault` on the path. CI does not have it: its build takes too long.
    Vault,
    /// `git` on the path.
    Git,
    /// `node` on the path.
    Node,
    /// `openssl` on the path.
    Openssl,
    /// `iptables-restore`.
    Iptables,
    /// `psql` on the path, and the server that [`postgres`] finds.
    Postgres,
    /// `mkfs.btrfs` and `btrfs` on the path, and a kernel that mounts btrfs.
    Btrfs,
    /// A compiler for C, `cc` on the path.
    Compiler,
    /// [`TUNNELS`], on the path or as `scripts/install-test-tools` brings them, and `/dev/net/tun`.
    Tunnels,
    /// `python3` and gRPC for it, as `scripts/install-test-tools` brings it.
    Grpcio,
    /// `python3` and boto3 for it, as `scripts/install-test-tools` brings it.
    Boto3,
    /// `python3` and aioquic for it, as `scripts/install-test-tools` brings it.
    Quic,
    /// `python3`, gRPC for it and the package `k8s-agent-sandbox` 1.0.8, as `scripts/install-test-tools` brings them.
    SandboxClient,
    /// Swap that a test can add: root, `mkswap`, `swapon`, and a disk or zram that takes it.
    Swap,
    /// The same with what its asynchronous half needs, also as `scripts/install-test-tools` brings it.
    AsyncSandboxClient,
}

/// Programs of [`Need::Tunnels`].
pub const TUNNELS: [&str; 8] =
    ["iodine", "iodined", "dns2tcpc", "dns2tcpd", "ptunnel-ng", "microsocks", "sshd", "ifconfig"];

/// Programs of [`Need::Kubernetes`].
const KUBERNETES: [&str; 5] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"];

impl Need {
    /// The reason to skip, or nothing when the need is met.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Need::Root => (!rustix::process::geteuid().is_root()).then_some("needs root"),
            Need::UserNamespaces => no_namespaces().then_some("needs user namespaces"),
            Need::Runsc => on_path("runsc").is_none().then_some("needs runsc (gVisor)"),
            Need::Kubectl => on_path("kubectl").is_none().then_some("needs kubectl"),
            Need::OldKubectl => on_path("kubectl-1.24").is_none().then_some("needs kubectl 1.24"),
            Need::Python => on_path("python3").is_none().then_some("needs python3"),
            Need::Bwrap => on_path("bwrap").is_none().then_some("needs bwrap (bubblewrap)"),
            Need::Kubernetes => {
                let missing = KUBERNETES.into_iter().any(|name| tool(name).is_none());
                missing.then_some("needs a Kubernetes control plane (scripts/install-test-tools)")
            }
            Need::GoClients => {
                tool("go-clients").is_none().then_some("needs go-clients (scripts/install-test-tools)")
            }
            Need::Vault => {
                on_path("vault").is_none().then_some("needs vault (scripts/install-test-tools vault)")
            }
            Need::Strace => (!can_trace()).then_some("needs strace"),
            Need::Buildah => on_path("buildah").is_none().then_some("needs buildah"),
            Need::DockerRegistry => tool("docker-registry")
                .is_none()
                .then_some("needs docker-registry (scripts/install-test-tools)"),
            Need::Stock => {
                let there = stock().is_file() && on_path("dpkg-deb").is_some();
                (!there).then_some("needs a root file system of Debian (scripts/install-test-tools)")
            }
            Need::Curl => on_path("curl").is_none().then_some("needs curl"),
            Need::Git => on_path("git").is_none().then_some("needs git"),
            Need::Node => on_path("node").is_none().then_some("needs node"),
            Need::Iptables => on_path("iptables-restore").is_none().then_some("needs iptables"),
            Need::Openssl => on_path("openssl").is_none().then_some("needs openssl"),
            Need::Btrfs => {
                let kernel = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
                let missing = on_path("mkfs.btrfs").is_none() || on_path("btrfs").is_none();
                (missing || !kernel.contains("btrfs")).then_some("needs btrfs")
            }
            Need::Swap => swap::missing(),
            Need::Compiler => on_path("cc").is_none().then_some("needs cc"),
            Need::Postgres => {
                let missing = on_path("psql").is_none() || postgres().is_none();
                missing.then_some("needs PostgreSQL, client and server")
            }
            Need::Tunnels => {
                let missing = TUNNELS.into_iter().any(|name| tool(name).is_none());
                let device = Path::new("/dev/net/tun").exists();
                let why =
                    "needs /dev/net/tun, iodine, dns2tcp, ptunnel-ng and others (scripts/install-test-tools)";
                (missing || !device).then_some(why)
            }
            Need::Grpcio => no_package("grpc", "needs python3 and grpcio (scripts/install-test-tools)"),
            Need::Boto3 => no_package("boto3", "needs python3 and boto3 (scripts/install-test-tools)"),
            Need::Quic => no_package("quic", "needs python3 and aioquic (scripts/install-test-tools)"),
            Need::SandboxClient => Need::Grpcio.missing().or_else(|| {
                let there = python_package("1.0.8").is_dir();
                (!there).then_some("needs k8s-agent-sandbox 1.0.8 (scripts/install-test-tools)")
            }),
            Need::AsyncSandboxClient => Need::SandboxClient.missing().or_else(|| {
                (!imports("httpx, kubernetes_asyncio"))
                    .then_some("needs httpx and kubernetes_asyncio (scripts/install-test-tools)")
            }),
        }
    }
}

/// Returns the reason to skip, unless Python and this folder of packages are there.
fn no_package(name: &str, reason: &'static str) -> Option<&'static str> {
    let there = on_path("python3").is_some() && python_package(name).is_dir();
    (!there).then_some(reason)
}

fn can_trace() -> bool {
    let traced = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    traced.is_ok_and(|output| output.status.success())
}

fn no_namespaces() -> bool {
    std::fs::read_to_string("/proc/sys/user/max_user_namespaces").map_or(true, |most| most.trim() == "0")
}

/// Returns true if Python has these modules, from the folder `async` or of itself.
fn imports(modules: &str) -> bool {
    let ambient = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let paths = std::iter::once(python_package("async")).chain(std::env::split_paths(&ambient));
    let Ok(paths) = std::env::join_paths(paths) else { return false };
    let mut python = std::process::Command::new("python3");
    python.args(["-c", &format!("import {modules}")]).env("PYTHONPATH", paths);
    python.stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The folder of a Python package that `scripts/install-test-tools` brings: `grpc`, `async`, `boto3`, `quic`, or a
/// release of `k8s-agent-sandbox`.
pub fn python_package(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/../../.tools/python/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// Archive of the root file system of [`Need::Stock`].
pub fn stock() -> PathBuf {
    PathBuf::from(format!("{}/../../.tools/stock/rootfs.tar", env!("CARGO_MANIFEST_DIR")))
}

/// The folder of musl, with `include` and `lib`, as `scripts/install-test-tools` brings it.
pub fn musl() -> Option<PathBuf> {
    let folder = PathBuf::from(format!("{}/../../.tools/musl", env!("CARGO_MANIFEST_DIR")));
    folder.join("lib/libc.a").is_file().then_some(folder)
}

/// The first program of that name on `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The folder with the programs of PostgreSQL's server, where Debian has it.
pub fn postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    versions.map(|version| version.path().join("bin")).find(|folder| folder.join("initdb").is_file())
}

/// A program that `scripts/install-test-tools` gets: the first on `PATH`, else the one in this repository's `.tools/bin`.
pub fn tool(name: &str) -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin").join(name);
    on_path(name).or_else(|| own.is_file().then_some(own))
}

/// Returns true if a missing need is a failure in this run.
pub fn strict() -> bool {
    std::env::var_os("HUTCH_TEST_REQUIRE_ALL").is_some_and(|v| v == "1")
}

/// Returns from the test, counted as skipped, unless the machine has what is named:
/// `root`, `user_namespaces`, `runsc`, `kubectl`, `old_kubectl`, `python`, `bwrap`, `kubernetes`, `curl`,
/// `buildah`, `docker_registry`, `git`, `node`, `openssl`, `postgres`, `compiler`, `tunnels`, `grpcio`, `sandbox_client`,
/// `async_sandbox_client`, `iptables`, `stock`, `swap`, `quic`.
#[macro_export]
macro_rules! require {
    ($($need:ident),+ $(,)?) => {
        $(
            if let Some(reason) = $crate::need!($need).missing() {
                assert!(!$crate::strict(), "{reason}, and HUTCH_TEST_REQUIRE_ALL is set");
                let thread = ::std::thread::current();
                // The harness captures println! of a passing test; the count needs the line, so it goes to the
                // descriptor itself.
                $crate::note_skip(thread.name().unwrap_or("?"), reason);
                return;
            }
        )+
    };
}

/// The [`Need`] of a name in [`require!`].
#[macro_export]
macro_rules! need {
    (root) => {
        $crate::Need::Root
    };
    (user_namespaces) => {
        $crate::Need::UserNamespaces
    };
    (runsc) => {
        $crate::Need::Runsc
    };
    (go_clients) => {
        $crate::Need::GoClients
    };
    (vault) => {
        $crate::Need::Vault
    };
    (kubectl) => {
        $crate::Need::Kubectl
    };
    (old_kubectl) => {
        $crate::Need::OldKubectl
    };
    (python) => {
        $crate::Need::Python
    };
    (bwrap) => {
        $crate::Need::Bwrap
    };
    (kubernetes) => {
        $crate::Need::Kubernetes
    };
    (curl) => {
        $crate::Need::Curl
    };
    (buildah) => {
        $crate::Need::Buildah
    };
    (strace) => {
        $crate::Need::Strace
    };
    (docker_registry) => {
        $crate::Need::DockerRegistry
    };
    (stock) => {
        $crate::Need::Stock
    };
    (git) => {
        $crate::Need::Git
    };
    (swap) => {
        $crate::Need::Swap
    };
    (node) => {
        $crate::Need::Node
    };
    (iptables) => {
        $crate::Need::Iptables
    };
    (openssl) => {
        $crate::Need::Openssl
    };
    (postgres) => {
        $crate::Need::Postgres
    };
    (btrfs) => {
        $crate::Need::Btrfs
    };
    (compiler) => {
        $crate::Need::Compiler
    };
    (tunnels) => {
        $crate::Need::Tunnels
    };
    (grpcio) => {
        $crate::Need::Grpcio
    };
    (quic) => {
        $crate::Need::Quic
    };
    (boto3) => {
        $crate::Need::Boto3
    };
    (sandbox_client) => {
        $crate::Need::SandboxClient
    };
    (async_sandbox_client) => {
        $crate::Need::AsyncSandboxClient
    };
}

/// Says something of a test that passes too, past the harness, which keeps what is printed to itself.
pub fn say(text: &str) {
    // Where it cannot be written there is no other place to report it.
    let _ = rustix::io::write(rustix::stdio::stdout(), text.as_bytes());
}

/// Writes the line that is counted: `skipped: <test>: <reason>`.
pub fn note_skip(test: &str, reason: &str) {
    // A lost line only makes the count of skipped tests too low.
    say(&format!("\nskipped: {test}: {reason}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_not_found() {
        assert_eq!(on_path("no-such-program-anywhere"), None);
        assert!(on_path("sh").is_some());
    }
}
