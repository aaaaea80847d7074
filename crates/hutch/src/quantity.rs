//! Values of flags: sizes, times, pairs, names.

use std::net::SocketAddr;
use std::time::Duration;

use hutch_api::quantity::Quantity;
use hutch_api::{go_duration, syntax};
use hutch_node::HostPath;

/// Bytes: a number with `k`, `M`, `G`, `T` (powers of 1000) or `Ki`, `Mi`, `Gi`, `Ti` (powers of 1024) behind it, an
/// optional `B` after that, or none.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write it like 512Mi or 2G");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = text[digits..].strip_suffix('B').unwrap_or(&text[digits..]);
    let unit = match unit {
        "" | "k" | "M" | "G" | "T" | "Ki" | "Mi" | "Gi" | "Ti" => unit,
        "K" => "k",
        "m" => "M",
        "g" => "G",
        "t" => "T",
        _ => return Err(wrong()),
    };
    let amount = Quantity::parse(&format!("{}{unit}", &text[..digits])).ok_or_else(wrong)?;
    let bytes = u64::try_from(amount.milli() / 1000).ok();
    // No machine has more.
    bytes.filter(|bytes| (1..=9_000_000_000_000_000).contains(bytes)).ok_or_else(wrong)
}

/// Memory of a jail: at least 1 MiB.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0..=1_048_575 => Err(format!("`{text}` is less than 1Mi, with which nothing starts")),
        bytes => Ok(bytes),
    }
}

/// Number of processes and threads: at least 2, the jail's init and one process, and at most what the kernel can count
/// (`PID_MAX_LIMIT`).
pub(crate) fn processes(text: &str) -> Result<u64, String> {
    let most = 4_194_304;
    let count = text.parse().ok().filter(|count| (2..=most).contains(count));
    count.ok_or_else(|| format!("`{text}` is not a whole number from 2 to {most}; the jail's init is one"))
}

/// Number of lines.
pub(crate) fn lines(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number of lines; write it like 100"))
}

/// Parses an IP address with a port.
pub(crate) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    // A port alone is written with the address that it most likely means.
    let port: u16 = text.strip_prefix(':').unwrap_or(text).parse().unwrap_or(6443);
    let wrong = || format!("`{text}` is not an IP address with a port; write it like 127.0.0.1:{port}");
    text.parse().map_err(|_| wrong())
}

/// Parses a duration in Go's notation (`1m30s`), or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration above zero; write it like 30s, 5m or 1h30m");
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = seconds.filter(|time| i64::try_from(time.as_nanos()).is_ok()).or_else(|| go_duration(text));
    time.filter(|time| !time.is_zero()).ok_or_else(wrong)
}

/// Parses a time, or `0`.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        _ => duration(text).map_err(|_| {
            format!("`{text}` is not a duration; write it like 30s, 5m or 1h30m, or 0 for no wait")
        }),
    }
}

/// Parses a time of at least one second.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < Duration::from_secs(1) { Err(format!("`{text}` is less than 1s")) } else { Ok(time) }
}

/// Parses the UID of a Pod: 1 to 64 letters, digits and `-`.
pub(crate) fn uid(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    match (1..=64).contains(&text.len()) && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is not the UID of a Pod: letters, digits and -, 64 at most")),
    }
}

/// Parses a DNS-1123 label, as names of namespaces and of routable Sandboxes are.
pub(crate) fn label(text: &str) -> Result<String, String> {
    match syntax::is_label(text) {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("`{text}` is not a name of at most 63 lower-case letters, digits and inner hyphens"))
        }
    }
}

/// Parses a DNS-1123 subdomain, as names of most objects are.
pub(crate) fn subdomain(text: &str) -> Result<String, String> {
    if syntax::subdomain(text).is_empty() {
        return Ok(text.to_owned());
    }
    Err(format!("`{text}` is not a name of lower-case letters, digits, inner hyphens and dots"))
}

/// Parses the lifetime of a user's certificate: what the API server accepts and grants.
pub(crate) fn certificate_lifetime(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_secs(600), Duration::from_secs(365 * 24 * 3600));
    let time = duration(text)?;
    match (least..=most).contains(&time) {
        true => Ok(time),
        false => Err(format!("`{text}` is not from 10m to 8760h, a year")),
    }
}

/// Parses the name of a user.
pub(crate) fn user(text: &str) -> Result<String, String> {
    match text {
        "admin" => Err("`admin` is the user of the server's own kubeconfig; choose another name".to_owned()),
        _ => subdomain(text),
    }
}

/// Parses the name of a group of users.
pub(crate) fn group(text: &str) -> Result<String, String> {
    match (1..=64).contains(&text.chars().count()) && !text.contains(|c: char| c.is_control() || c == ',') {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{}` is not the name of one group: 1 to 64 characters, none of them a comma or a control character",
            text.escape_debug()
        )),
    }
}

/// Parses CPUs; returns thousandths.
pub(crate) fn cpus(text: &str) -> Result<u64, String> {
    let number: f64 =
        text.parse().map_err(|_| format!("`{text}` is not a number of CPUs; write it like 0.5 or 2"))?;
    let millis = (number * 1000.0).round();
    // The kernel's own floor is a quota of 1 ms in a period of 100 ms.
    if !(10.0..=1_000_000.0).contains(&millis) {
        return Err(format!("`{text}` CPUs cannot be had; at least 0.01, at most 1000"));
    }
    Ok(millis as u64)
}

/// Parses `NAME=VALUE`.
pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    pair(text, "NAME=VALUE")
}

/// Parses `NAME=HANDLER`.
pub(crate) fn runtime_class(text: &str) -> Result<(String, String), String> {
    pair(text, "NAME=HANDLER, such as gvisor=gvisor")
}

/// Parses `DIR[:rw]`.
pub(crate) fn host_path(text: &str) -> Result<HostPath, String> {
    let (folder, writable) = match text.strip_suffix(":rw") {
        Some(folder) => (folder, true),
        None => (text.strip_suffix(":ro").unwrap_or(text), false),
    };
    match folder.starts_with('/') {
        true => Ok(HostPath { folder: folder.into(), writable }),
        false => Err(format!("`{text}` is not DIR[:rw], such as /srv/data:rw; DIR is an absolute path")),
    }
}

fn pair(text: &str, form: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        None => Err(format!("`{text}` has no `=`; write it like {form}")),
        Some(("", _)) => Err(format!("`{text}` has no name before the `=`; write it like {form}")),
        Some(_) if text.contains('\0') => Err(format!("{text:?} contains a NUL character")),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
    }
}

/// Parses an IPv4 range outside loopback, of 16 to 65536 addresses.
pub(crate) fn cidr(text: &str) -> Result<String, String> {
    let wrong =
        || format!("`{text}` is not an IPv4 range of /16 to /28 for Pods; write it like 10.89.0.0/16");
    let (address, length) = text.split_once('/').ok_or_else(wrong)?;
    let address: std::net::Ipv4Addr = address.parse().map_err(|_| wrong())?;
    let length: u32 = length.parse().ok().filter(|l| (16..=28).contains(l)).ok_or_else(wrong)?;
    let forbidden = address.is_loopback() || address.is_link_local() || address.is_multicast();
    let host_bits = u32::from(address) & (u32::MAX >> length);
    if forbidden || address.octets()[0] == 0 || host_bits != 0 {
        return Err(format!(
            "`{text}` cannot be a range for Pods: its first address, not loopback, link-local or multicast"
        ));
    }
    Ok(text.to_owned())
}

/// Shows a size as Docker does: three digits, in powers of 1000.
pub(crate) fn shown(count: u64) -> String {
    let (mut size, mut unit) = (count as f64, "B");
    for next in ["kB", "MB", "GB", "TB"] {
        if size < 999.5 {
            break;
        }
        (size, unit) = (size / 1e3, next);
    }
    let digits = match size {
        _ if unit == "B" => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{size:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_docker() {
        for (count, shown) in [
            (0, "0B"),
            (999, "999B"),
            (1000, "1.00kB"),
            (45_100_000, "45.1MB"),
            (999_700_000, "1.00GB"),
            (124_000_000, "124MB"),
        ] {
            assert_eq!(super::shown(count), shown);
        }
    }

    #[test]
    fn folders_of_the_machine_are_read_only_unless_they_say_so() {
        let allowed =
            |text: &str| host_path(text).map(|path| (path.folder.display().to_string(), path.writable));
        for (text, folder, writable) in
            [("/a", "/a", false), ("/a:ro", "/a", false), ("/a:rw", "/a", true), ("/a:b", "/a:b", false)]
        {
            assert_eq!(allowed(text), Ok((folder.to_owned(), writable)), "{text}");
        }
        for wrong in ["", "a", ":rw", "a:rw"] {
            assert!(allowed(wrong).unwrap_err().contains("absolute path"), "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes("512Mi"), Ok(512 << 20));
        assert_eq!(bytes("1.5G"), Ok(1_500_000_000));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("1"), Ok(1));
        for wrong in ["", "x", "1X", "-1", "0", "1e3", "999999999T", "1..2"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!((timeout("0"), timeout("1m")), (Ok(Duration::ZERO), Ok(Duration::from_secs(60))));
        for wrong in ["", "0", "0s", "-1s", "5x", "s", "1h2", "inf", "nan", "1e400"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pod_ranges() {
        assert!(cidr("10.89.0.0/16").is_ok());
        for wrong in [
            "127.0.0.0/16",
            "10.0.0.0/8",
            "10.89.0.1/16",
            "10.89.0.0",
            "169.254.0.0/16",
            "224.0.0.0/8",
            "10.0.0.0/30",
        ] {
            assert!(cidr(wrong).is_err(), "{wrong}");
        }
    }
}
