//! The attempts by name.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixStream};
use std::time::Duration;

use super::{calls, files};

/// Tries the attempt `name`: `ok`, the name of an error, or what was found.
///
/// # Errors
///
/// When there is no such attempt, or an argument of it is missing or no number.
pub fn attempt(name: &str, arguments: &[&str]) -> Result<String, String> {
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
        "chown" => calls::set_owner(text(0)?),
        "chmod" => calls::set_mode(text(0)?),
        "more-capabilities" => calls::more_capabilities(),
        "ambient-capability" => calls::ambient_capability(),
        "burn" => calls::burn(Duration::from_millis(number(0)? as u64)),
        "forks" => calls::forks(number(0)? as usize),
        "eat" => eat(number(0)? as usize),
        "landlock-layers" => calls::landlock_layers(),
        "read" => files::read(text(0)?),
        "write" => files::write(text(0)?),
        "open-write" => files::open_to_write(text(0)?),
        "make" => files::make(text(0)?),
        "list" => files::list(text(0)?),
        "lock" => files::lock(text(0)?),
        "lease" => calls::lease(text(0)?),
        "folder-notes" => calls::folder_notes(text(0)?),
        "dirty-pipe" => calls::dirty_pipe(),
        "held-folders" => files::held_folders(),
        "programs-of-others" => files::programs_of_others(),
        "unix" => unix(text(0)?),
        "semaphores" => calls::semaphores(number(0)? as i32),
        "messages" => calls::messages(number(0)? as i32),
        "named-messages" => calls::named_messages(text(0)?),
        "core-size" => calls::core_size(),
        "status" => status(text(0)?),
        "process-named" => files::process_named(text(0)?),
        "descriptors" => descriptors(),
        "connect" => connect(text(0)?)?,
        "abstract" => abstract_socket(text(0)?),
        "interfaces" => interfaces(),
        _ => return Err(format!("no attempt {name}")),
    })
}

/// Lines of `/proc/self/status` that begin so, with single spaces.
fn status(prefix: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = text.lines().filter(|line| line.starts_with(prefix));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}

/// Open descriptors, less the one by which they are listed.
fn descriptors() -> String {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        // The listing itself; its file descriptor is closed when other code inspects it.
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
        Err(error) => calls::failed(&error),
    })
}

fn unix(path: &str) -> String {
    UnixStream::connect(path).map_or_else(|error| calls::failed(&error), |_| "ok".to_owned())
}

fn abstract_socket(name: &str) -> String {
    let connected =
        LocalAddr::from_abstract_name(name).and_then(|address| UnixStream::connect_addr(&address));
    connected.map_or_else(|error| calls::failed(&error), |_| "ok".to_owned())
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
