//! The attempts by name.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixStream};
use std::time::Duration;

use crate::calls;

/// Tries the attempt `name`.
pub(crate) fn attempt(name: &str, arguments: &[&str]) -> Result<String, String> {
    let number = |index: usize| -> Result<i64, String> {
        let text = arguments.get(index).ok_or(format!("{name}: argument {index} is missing"))?;
        text.parse().map_err(|error| format!("{name}: {text}: {error}"))
    };
    let text =
        |index: usize| arguments.get(index).copied().ok_or(format!("{name}: argument {index} is missing"));
    Ok(match name {
        "syscall" => {
            let mut values = [0; 6];
            for (index, value) in values.iter_mut().enumerate().take(arguments.len() - 1) {
                *value = number(index + 1)?;
            }
            calls::raw(number(0)?, values)
        }
        "unshare" => calls::unshare(number(0)? as i32),
        "clone" => calls::clone(number(0)?),
        "socket" => calls::socket(number(0)? as i32, number(1)? as i32, number(2)? as i32),
        "terminal" => calls::ioctl_on_terminal(number(0)? as u64),
        "gate" => calls::by_the_32_bit_gate(),
        "kill" => calls::kill(number(0)? as i32, 0),
        "attack-init" => calls::attack_init(),
        "session" => calls::session(),
        "keyring" => calls::session_keyring(),
        "shared-memory" => calls::shared_memory(number(0)? as i32),
        "mknod" => calls::mknod(text(0)?, libc::S_IFBLK | 0o600, 7, 0),
        "set-id" => calls::set_id_bits(text(0)?),
        "burn" => calls::burn(Duration::from_millis(number(0)? as u64)),
        "forks" => calls::forks(number(0)? as usize),
        "eat" => eat(number(0)? as usize),
        "landlock-layers" => calls::landlock_layers(),
        "read" => read(text(0)?),
        "write" => write(text(0)?),
        "list" => list(text(0)?),
        "status" => status(text(0)?),
        "processes" => processes(),
        "descriptors" => descriptors(),
        "connect" => connect(text(0)?)?,
        "abstract" => abstract_socket(text(0)?),
        "interfaces" => interfaces(),
        _ => return Err(format!("no attempt {name}")),
    })
}

fn failed(error: &std::io::Error) -> String {
    calls::error_name(error.raw_os_error().unwrap_or(0))
}

/// The beginning of a file.
fn read(path: &str) -> String {
    use std::io::Read;
    let mut bytes = [0; 4096];
    match fs::File::open(path).and_then(|mut file| file.read(&mut bytes)) {
        Ok(0) => "empty".to_owned(),
        Ok(length) => String::from_utf8_lossy(&bytes[..length]).trim().to_owned(),
        Err(error) => failed(&error),
    }
}

/// Opens a file to write to it, or makes it; writes nothing.
fn write(path: &str) -> String {
    let file = fs::OpenOptions::new().append(true).create(true).open(path);
    match file.and_then(|mut file| file.write(b"")) {
        Ok(_) => "ok".to_owned(),
        Err(error) => failed(&error),
    }
}

/// What is in a folder, sorted.
fn list(path: &str) -> String {
    match fs::read_dir(path) {
        Ok(entries) => {
            let mut names: Vec<String> =
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names.join(" ")
        }
        Err(error) => failed(&error),
    }
}

/// Lines of `/proc/self/status` that begin so, with single spaces.
fn status(prefix: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = text.lines().filter(|line| line.starts_with(prefix));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}

fn processes() -> String {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok()).count().to_string()
}

/// Open descriptors, less the one by which they are listed.
fn descriptors() -> String {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        // The listing itself; its descriptor is closed when it is looked at elsewhere.
        if !target.to_string_lossy().ends_with("/fd") {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    found.join(" ")
}

fn connect(address: &str) -> Result<String, String> {
    let address: SocketAddr = address.parse().map_err(|error| format!("{address}: {error}"))?;
    Ok(match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
        Ok(_) => "ok".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => "timeout".to_owned(),
        Err(error) => failed(&error),
    })
}

fn abstract_socket(name: &str) -> String {
    let connected =
        LocalAddr::from_abstract_name(name).and_then(|address| UnixStream::connect_addr(&address));
    connected.map_or_else(|error| failed(&error), |_| "ok".to_owned())
}

/// Names of the network interfaces.
fn interfaces() -> String {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let names: Vec<&str> =
        text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    names.join(" ")
}

/// Writes to so many MiB of memory.
fn eat(mebibytes: usize) -> String {
    let mut eaten = Vec::new();
    for _ in 0..mebibytes {
        eaten.push(vec![7_u8; 1 << 20]);
    }
    std::hint::black_box(&eaten);
    "ok".to_owned()
}
