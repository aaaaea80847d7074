//! The static programs that this binary carries compressed: writes them to files that can be executed.

use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use flate2::read::GzDecoder;

const WARDEN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hutch-warden"));
const ATTACKS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hutch-attack"));
const SANDBOXD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hutch-sandboxd"));

/// Bytes compared at a time.
const PIECE_BYTES: u64 = 64 << 10;

/// Paths of the programs.
pub(crate) struct Programs {
    /// Forks jails for the node.
    pub(crate) warden: PathBuf,
    /// Serves the runtime's contract inside a sandbox.
    pub(crate) sandboxd: PathBuf,
}

/// File name of the program that tries attacks.
pub(crate) const ATTACK: &str = "hutch-attack";

/// Writes the warden and sandboxd below `folder`, replacing what an earlier version left there.
pub(crate) fn install(folder: &Path) -> anyhow::Result<Programs> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(Programs { warden: write(folder, "warden", WARDEN)?, sandboxd: write(folder, "sandboxd", SANDBOXD)? })
}

/// Writes sandboxd alone, as `hutch-sandboxd`; returns its path.
pub(crate) fn install_sandboxd(folder: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    write(folder, "hutch-sandboxd", SANDBOXD)
}

/// Writes the program that tries attacks, as [`ATTACK`].
pub(crate) fn install_attack(folder: &Path) -> anyhow::Result<PathBuf> {
    write(folder, ATTACK, ATTACKS)
}

/// Writes a new file under the final name, because the old one may be running and a running program cannot be written to.
/// An equal file stays, because the disk may be full.
fn write(folder: &Path, name: &str, packed: &[u8]) -> anyhow::Result<PathBuf> {
    let file = folder.join(name);
    if is_same(&file, packed).unwrap_or(false) {
        return Ok(file);
    }
    let fresh = folder.join(format!(".{name}.new"));
    let put = || -> std::io::Result<()> {
        let mut out =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(&fresh)?;
        std::io::copy(&mut GzDecoder::new(packed), &mut out)?;
        out.set_permissions(std::fs::Permissions::from_mode(0o755))?;
        drop(out);
        std::fs::rename(&fresh, &file)
    };
    let written = put();
    if written.is_err() {
        // Removes the incomplete file; the error above is reported.
        let _ = std::fs::remove_file(&fresh);
    }
    written.with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Returns true if the file is this program.
fn is_same(file: &Path, packed: &[u8]) -> std::io::Result<bool> {
    let found = std::fs::symlink_metadata(file)?;
    if !found.is_file() || found.permissions().mode() & 0o7777 != 0o755 {
        return Ok(false);
    }
    let (mut there, mut wanted) = (std::fs::File::open(file)?, GzDecoder::new(packed));
    let (mut one, mut other) = (Vec::new(), Vec::new());
    loop {
        one.clear();
        other.clear();
        there.by_ref().take(PIECE_BYTES).read_to_end(&mut one)?;
        wanted.by_ref().take(PIECE_BYTES).read_to_end(&mut other)?;
        if one != other {
            return Ok(false);
        }
        if one.is_empty() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;
    use std::process::{Command, Stdio};

    use super::*;

    /// Maximum size of the file of sandboxd, and its maximum memory when it is idle.
    const SANDBOXD_BYTES: u64 = 8_000_000;
    const SANDBOXD_IDLE_KIB: u64 = 4_000_000 / 1024;

    #[test]
    fn equal_program_is_not_written_again() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("tempdir");
        let inode = || {
            std::fs::metadata(install_sandboxd(folder.path()).expect("installed")).expect("it is there").ino()
        };
        let first = inode();
        assert_eq!(inode(), first);
        for spoil in [
            (|file: &Path| std::fs::write(file, "other").expect("written")) as fn(&Path),
            |file| std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o777)).expect("mode"),
            |file| {
                let mut file = std::fs::OpenOptions::new().append(true).open(file).expect("open");
                file.write_all(b"x").expect("written");
            },
        ] {
            let before = inode();
            spoil(&folder.path().join("hutch-sandboxd"));
            assert_ne!(inode(), before);
        }
    }

    #[test]
    fn sandboxd_is_small() {
        let folder = tempfile::tempdir().expect("tempdir");
        let program = install(folder.path()).expect("installed").sandboxd;
        let size = std::fs::metadata(&program).expect("it is there").len();
        assert!(size <= SANDBOXD_BYTES, "{size} bytes");
        let mut command = Command::new(&program);
        command.args(["--port=0", "--rest-port=0", "--grpc-port=0", "--base-dir"]).arg(folder.path());
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("a pipe")).read_line(&mut line).expect("it says a line");
        let port = line.split_whitespace().find_map(|word| word.strip_prefix("rest=")?.parse::<u16>().ok());
        let mut stream = TcpStream::connect(("127.0.0.1", port.expect("a port"))).expect("it listens");
        write!(stream, "GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let resident = resident.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
        assert!(resident.expect("a number") <= SANDBOXD_IDLE_KIB, "{resident:?} KiB");
    }
}
