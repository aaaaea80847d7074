//! Measures the runtime inside a sandbox: the size of its file, the time from its start to its first response, and its
//! memory when idle.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::stats::{Samples, millis};

const ROUNDS: usize = 50;
/// Wait before the memory is read, so that the memory of the start has been released.
const IDLE: Duration = Duration::from_secs(2);
const PROGRAM: &str = "hutch-sandboxd";

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let program = program()?;
    let size = program.metadata()?.len();
    let folder = tempfile::tempdir()?;
    // The first start reads the file from disk.
    Running::start(&program, folder.path())?;
    let mut ready = Samples::default();
    for _ in 0..ROUNDS {
        ready.add(Running::start(&program, folder.path())?.ready);
    }
    let running = Running::start(&program, folder.path())?;
    std::thread::sleep(IDLE);
    let resident = running.resident_kib()?;
    println!("\n### sandboxd\n\n| | |\n|---|---|");
    println!("| the file, MB | {:.2} |", size as f64 / 1e6);
    println!("| from its start to its first answer, p50 ms (n {}) | {} |", ready.len(), millis(ready.p50()));
    println!("| the same, p99 ms | {} |", millis(ready.p99()));
    println!("| resident when idle, MB | {:.2} |", resident as f64 * 1024.0 / 1e6);
    Ok(())
}

/// Returns the program in `HUTCH_SANDBOXD`, by default the one that the build of `hutch` packed into it.
fn program() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("HUTCH_SANDBOXD") {
        return Ok(named.into());
    }
    let own = std::env::current_exe()?;
    let programs = own.ancestors().nth(2).context("a build folder")?.join("programs");
    let targets = std::fs::read_dir(&programs).into_iter().flatten().flatten();
    let mut built = targets.map(|target| target.path().join("program").join(PROGRAM));
    built.find(|file| file.is_file()).with_context(|| {
        format!("no {PROGRAM} below {}: build hutch, or name one in HUTCH_SANDBOXD", programs.display())
    })
}

/// A running sandboxd; killed when dropped.
struct Running {
    child: Child,
    ready: Duration,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(program: &Path, folder: &Path) -> anyhow::Result<Running> {
        let begun = Instant::now();
        let mut command = Command::new(program);
        command.args(["--port=0", "--rest-port=0", "--grpc-port=0", "--base-dir"]).arg(folder);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let said = child.stderr.take().context("a pipe")?;
        let mut running = Running { child, ready: Duration::ZERO };
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let port = line.split_whitespace().find_map(|word| word.strip_prefix("rest=")?.parse().ok());
        let port: u16 = port.with_context(|| format!("no REST port in {line:?}"))?;
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        running.ready = begun.elapsed();
        ensure!(answer.starts_with(b"HTTP/1.1 200 "), "it answers {:?}", String::from_utf8_lossy(&answer));
        Ok(running)
    }

    fn resident_kib(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let Some(kib) = line.and_then(|line| line.split_whitespace().next()?.parse().ok()) else {
            bail!("/proc has no VmRSS of {PROGRAM}")
        };
        Ok(kib)
    }
}
