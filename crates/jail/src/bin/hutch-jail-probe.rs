//! Program for the tests of the jail: `launch` makes a jail as a single-threaded program has to, `hold` makes one through
//! a warden and waits to be killed, `attempt` is an attack
//! that is tried inside it and says on one line how it went: `ok`, the name of an error, or what was found. `attempts`
//! tries many.
//!
//! It is for tests alone and no part of what is installed.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use hutch_jail::attack::{attempt, new_session_keyring, open_inheritable, try_all};
use hutch_jail::service::{Confinement, confine};
use hutch_jail::{NetworkPlan, Process, RunOptions, Spec, Stdio, Warden, run_with_listeners};
use serde::{Deserialize, Serialize};

/// Most bytes of each output stream that are kept.
const KEPT: usize = 256 * 1024;

/// User and group id of `service`.
const SERVICE_ID: u32 = 0x2fff_fff0;

/// Input of `launch`.
#[derive(Deserialize)]
struct Job {
    spec: Spec,
    process: Process,
    timeout_ms: u64,
    /// A file that is held open, inheritably, while the jail is launched.
    leak: Option<String>,
}

/// Output of `launch`.
#[derive(Default, Serialize)]
struct Report {
    error: Option<String>,
    ended: Option<String>,
    stdout: String,
    stderr: String,
    landlock: bool,
    /// The session keyring of this process.
    keyring: i64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["launch"] => launch(),
        ["hold", warden, state] => hold(warden, state),
        ["service", folder] => service(Path::new(folder)),
        ["attempts", ..] => {
            let attempts: Vec<String> = arguments[1..].iter().map(|&attempt| attempt.to_owned()).collect();
            match try_all(&attempts, &mut std::io::stdout()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error.to_string()),
            }
        }
        ["attempt", name, ref rest @ ..] => match attempt(name, rest) {
            Ok(found) => {
                println!("{found}");
                ExitCode::SUCCESS
            }
            Err(unknown) => fail(&unknown),
        },
        _ => {
            eprintln!(
                "usage: hutch-jail-probe service FOLDER | launch | hold WARDEN STATE | attempt NAME [ARGUMENT]... | attempts ATTEMPT..."
            );
            ExitCode::FAILURE
        }
    }
}

fn job() -> Result<Job, String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

fn fail(error: &str) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

/// Confines this process as a service that has a folder, and reports what it can do as JSON.
fn service(folder: &Path) -> ExitCode {
    let (uid, gid) = (SERVICE_ID, SERVICE_ID);
    let ids = Confinement { uid, gid, writable: &[folder], readable: &[], connects: false };
    if let Err(error) = confine(&ids) {
        return fail(&error.to_string());
    }
    let name = |result: std::io::Result<()>| match result {
        Ok(()) => "done".to_owned(),
        Err(error) => error.to_string().split(" (os error").next().unwrap_or_default().to_owned(),
    };
    let read = |path: &str| name(std::fs::read(path).map(drop));
    let thread = std::thread::Builder::new().spawn(|| {}).map(|thread| thread.join().is_ok());
    let found = serde_json::json!({
        "own file": name(std::fs::write(folder.join("own"), "x")),
        "own file again": name(std::fs::read(folder.join("own")).map(drop)),
        "thread": name(thread.map(drop)),
        "socket pair": name(std::os::unix::net::UnixStream::pair().map(drop)),
        "passwd": read("/etc/passwd"),
        "shadow": read("/etc/shadow"),
        "list": name(std::fs::read_dir("/etc").map(drop)),
        "file elsewhere": name(std::fs::write("/tmp/hutch-service", "x")),
        "program": name(std::process::Command::new("/bin/true").status().map(drop)),
        "listener": name(std::net::TcpListener::bind("127.0.0.1:0").map(drop)),
        "connection": name(std::net::TcpStream::connect("127.0.0.1:9").map(drop)),
        "root again": name(rustix::thread::set_thread_uid(rustix::process::Uid::ROOT).map_err(Into::into)),
        "confined twice": name(confine(&ids).map(drop).map_err(std::io::Error::other)),
    });
    println!("{found}");
    ExitCode::SUCCESS
}

/// Says `ready` when a process runs in a jail of a warden, and waits.
fn hold(warden: &str, state: &str) -> ExitCode {
    let job = match job() {
        Ok(job) => job,
        Err(error) => return fail(&error),
    };
    let null = || std::fs::File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    let held = Warden::start(Path::new(warden), Path::new(state)).and_then(|warden| {
        let network = warden.network(&NetworkPlan::default())?;
        let jail = warden.launch(&job.spec, network.namespace.as_fd())?;
        if let (Ok(stdin), Ok(stdout), Ok(stderr)) = (null(), null(), null()) {
            jail.spawn(&job.process, &Stdio { stdin, stdout, stderr })?;
        }
        Ok((warden, jail))
    });
    match held {
        Ok(_held) => {
            println!("ready");
            loop {
                std::thread::park();
            }
        }
        Err(error) => fail(&error.to_string()),
    }
}

/// Answers each TCP connection with the address that it was made to, and each datagram with its content.
fn serve(listeners: Vec<OwnedFd>) -> Result<(), hutch_jail::Error> {
    for listener in listeners {
        if let Ok(rustix::net::SocketType::STREAM) = rustix::net::sockopt::socket_type(&listener) {
            let listener = std::net::TcpListener::from(listener);
            std::thread::spawn(move || {
                let _ = listener.set_nonblocking(false);
                while let Ok((mut connection, _)) = listener.accept() {
                    if let Ok(address) = connection.local_addr() {
                        let _ = writeln!(connection, "{address}");
                    }
                }
            });
        } else {
            let socket = std::net::UdpSocket::from(listener);
            std::thread::spawn(move || {
                let _ = socket.set_nonblocking(false);
                let mut bytes = [0; 64];
                while let Ok((length, sender)) = socket.recv_from(&mut bytes) {
                    let _ = socket.send_to(&bytes[..length], sender);
                }
            });
        }
    }
    Ok(())
}

fn launch() -> ExitCode {
    let job = match job() {
        Ok(job) => job,
        Err(error) => return fail(&error),
    };
    let mut report = Report { keyring: new_session_keyring(), ..Report::default() };
    if let Some(path) = &job.leak {
        open_inheritable(path);
    }
    let options = RunOptions {
        timeout: Some(Duration::from_millis(job.timeout_ms)),
        grace: Duration::from_millis(100),
        capture: Some(KEPT),
    };
    match run_with_listeners(&job.spec, &job.process, &options, &mut serve) {
        Ok(outcome) => {
            let text = |kept: Option<hutch_jail::run::Captured>| {
                String::from_utf8_lossy(&kept.unwrap_or_default().bytes).into_owned()
            };
            report.ended = Some(format!("{:?}", outcome.ended));
            report.landlock = outcome.isolation.landlock;
            report.stdout = text(outcome.stdout);
            report.stderr = text(outcome.stderr);
        }
        Err(error) => report.error = Some(error.to_string()),
    }
    println!("{}", serde_json::to_string(&report).unwrap_or_default());
    ExitCode::SUCCESS
}
