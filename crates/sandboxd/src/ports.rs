//! Ports that processes of the sandbox listen on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Serialize;

/// Listening TCP port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Listening {
    /// Port number.
    pub port: u16,
    /// Listening address: all addresses, the loopback, or one.
    pub address: IpAddr,
}

/// Maximum number of listed ports.
pub(crate) const PORT_LIMIT: usize = 4096;

/// Lists the listening TCP ports of this network namespace by number, except `own`.
///
/// # Errors
/// The kernel's table cannot be read.
pub(crate) fn listening(own: &[u16]) -> std::io::Result<Vec<Listening>> {
    let mut all = Vec::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        match std::fs::read_to_string(table) {
            Ok(text) => all.extend(text.lines().filter_map(line)),
            // A kernel without IPv6 has no such table.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    all.retain(|listening| !own.contains(&listening.port));
    all.sort();
    all.dedup();
    all.truncate(PORT_LIMIT);
    Ok(all)
}

/// Parses a line of the table; `None` unless it is a listener.
fn line(line: &str) -> Option<Listening> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, _remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (address, port) = local.split_once(':')?;
    let address = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(address)?)),
        32 => {
            let mut bytes = [0; 16];
            for (number, chunk) in bytes.chunks_mut(4).enumerate() {
                chunk.copy_from_slice(&word(address.get(number * 8..number * 8 + 8)?)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    (state == LISTEN).then_some(Listening { port: u16::from_str_radix(port, 16).ok()?, address })
}

/// Parses a word of an address, which the kernel prints as a number in native byte order.
fn word(text: &str) -> Option<[u8; 4]> {
    u32::from_str_radix(text, 16).ok().map(u32::to_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;

    #[test]
    fn listeners_are_listed_until_they_close() {
        let four = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = four.local_addr().unwrap();
        let expected = Listening { port: address.port(), address: address.ip() };
        assert!(listening(&[]).unwrap().contains(&expected));
        assert!(!listening(&[address.port()]).unwrap().contains(&expected));
        drop(four);
        assert!(!listening(&[]).unwrap().contains(&expected));
    }

    proptest! {
        #[test]
        fn any_line_is_parsed_or_ignored(text in "[0-9A-F: é]{0,120}") {
            let _ = line(&text);
        }
    }
}
