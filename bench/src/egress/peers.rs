//! Other proxies: a bare relay of this program; squid and mitmproxy, if they are installed.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hutch_testkit::on_path;

use super::bare;

/// Maximum time until a proxy accepts connections.
const START: Duration = Duration::from_secs(60);

/// A proxy on loopback. It ends when this is dropped.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) address: String,
    /// It measures only TLS, which it ends by this authority.
    pub(super) authority: Option<PathBuf>,
    pub(super) needs_tls: bool,
    /// None if it is a thread of this program.
    process: Option<Child>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Peer {
    /// Starts those that are installed. What does not start is reported and left out.
    pub(super) fn start_all(folder: &Path) -> Vec<Peer> {
        [bare_relay(), squid(folder), mitmproxy(folder)].into_iter().flatten().collect()
    }

    fn wait(mut self) -> Option<Peer> {
        self.process.as_ref()?;
        let began = Instant::now();
        let ready = |peer: &Peer| {
            let has_authority = peer.authority.as_ref().is_none_or(|file| file.exists());
            has_authority && TcpStream::connect(&peer.address).is_ok()
        };
        while !ready(&self) {
            let ended = self
                .process
                .as_mut()
                .is_some_and(|process| process.try_wait().is_ok_and(|end| end.is_some()));
            if ended || began.elapsed() > START {
                eprintln!("{} does not start and is left out", self.name);
                return None;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(self)
    }
}

fn free_port() -> Option<u16> {
    Some(TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port())
}

/// Runs a command that sees the hosts file of the folder.
fn with_hosts(folder: &Path, command: &[&str]) -> Option<Child> {
    let script = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.join("hosts")).args(command);
    unshare.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

fn bare_relay() -> Option<Peer> {
    let address = bare::start()?;
    Some(Peer { name: "a bare relay, CONNECT", address, authority: None, needs_tls: false, process: None })
}

fn squid(folder: &Path) -> Option<Peer> {
    let program =
        on_path("squid").or_else(|| Some(PathBuf::from("/usr/sbin/squid")).filter(|path| path.exists()))?;
    let port = free_port()?;
    let file = folder.join("squid.conf");
    let text = format!(
        "http_port 127.0.0.1:{port}\nacl all_ports port 1-65535\nacl CONNECT method CONNECT\nhttp_access allow all\n\
         cache deny all\naccess_log none\ncache_log /dev/null\npid_filename none\nhosts_file {}\n\
         shutdown_lifetime 0 seconds\n",
        folder.join("hosts").display()
    );
    std::fs::write(&file, text).ok()?;
    let process =
        with_hosts(folder, &[&program.display().to_string(), "-N", "-f", &file.display().to_string()]);
    let address = format!("127.0.0.1:{port}");
    Peer { name: "squid, CONNECT", address, authority: None, needs_tls: false, process }.wait()
}

fn mitmproxy(folder: &Path) -> Option<Peer> {
    let program = on_path("mitmdump")?;
    let (port, state) = (free_port()?.to_string(), folder.join("mitmproxy"));
    let confdir = format!("confdir={}", state.display());
    let command = [
        &program.display().to_string(),
        "-q",
        "--listen-host",
        "127.0.0.1",
        "-p",
        &port,
        "--set",
        &confdir,
        "--set",
        "ssl_insecure=true",
        "--set",
        "flow_detail=0",
    ];
    let process = with_hosts(folder, &command);
    let authority = Some(state.join("mitmproxy-ca-cert.pem"));
    let address = format!("127.0.0.1:{port}");
    Peer { name: "mitmproxy, requests read", address, authority, needs_tls: true, process }.wait()
}
