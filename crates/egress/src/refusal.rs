//! Refusals: what was refused, why, and how the client is answered.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use hutch_policy::{Decision, Destination, Forbidden, Host, Identity, Mode, Opinion, Unmet, check_address};
use rustix::net::sockopt::set_socket_linger;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::first::{self, First, classify};
use crate::ground::Ground;
use hutch_screen::Found;

/// Text about user information in a URL. It shows none of it, because there may be a password.
pub(crate) const WITH_USER: &str = "its host has a user name";
/// Code of an error of JSON-RPC about a refused call.
pub(crate) const REFUSED: i32 = -32001;
/// Maximum time to wait for the first bytes of a client that is refused, and to send it the reason.
const SPEAKS: Duration = Duration::from_millis(200);
/// Maximum bytes that are read after a request that was refused, and the time for them.
const REST: u64 = 1 << 20;
pub(crate) const REST_TIME: Duration = Duration::from_secs(5);

/// A connection or request that was refused, or that a level would have refused that only observes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Destination, as the sandbox named it; of a request, its method, its URL without the query, and the calls in its
    /// body.
    pub destination: String,
    /// Reason.
    pub reason: Reason,
}

/// Reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Reason {
    /// A level does not allow it.
    #[error("{0}")]
    Denied(Denial),
    /// A policy does not allow the other sandbox.
    #[error("{0}")]
    Closed(String, Ground),
    /// A level would not allow it, but it only observes.
    #[error("{0}, but it only observes")]
    Observed(Denial),
    /// A level does not allow the name, so it has no address.
    #[error("{0}")]
    Name(Denial),
    /// A level would not allow the name, but it only observes.
    #[error("{0}, but it only observes")]
    ObservedName(Denial),
    /// No Pod has the address of the client, or its token is another one.
    #[error("a sandbox must name itself with its own token, from its own address")]
    Unidentified,
    /// The name has no address, because there are too many.
    #[error("too many names: {0}")]
    Exhausted(String),
    /// The connection is for another name, or does not say for which.
    #[error("{0}")]
    OtherName(String),
    /// The request can be understood in more than one way.
    #[error("the request is ambiguous: {0}")]
    Ambiguous(String),
    /// The budget of a level is used up.
    #[error("the budget of policy {0:?} is used up: {1}")]
    Budget(String, String),
    /// The scanner finds something in it.
    #[error("{0}")]
    Found(Box<Found>),
    /// The scanner finds something in it, but a level only wants to know.
    #[error("{0}, and only records it")]
    FoundOnly(Box<Found>),
    /// The scanner finds something in it, which is replaced.
    #[error("{0}, and replaces it")]
    Redacted(Box<Found>),
    /// The destination leads to an address that is closed.
    #[error("{0}")]
    Forbidden(String),
    /// The destination cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The placeholder of a credential stands where its value may not.
    #[error("credential {0:?}: {1}")]
    Credential(String, String),
    /// The audit log must have it first, and cannot.
    #[error("the audit log cannot be written")]
    Unrecorded,
    /// The sandbox has too many connections.
    #[error("too many connections are open")]
    TooMany,
    /// Its body would need memory that other bodies of the sandbox have had for too long.
    #[error("the other bodies of the sandbox have taken all the memory for bodies for a minute")]
    NoRoom,
    /// The process has no descriptors left, for all sandboxes together.
    #[error("the proxy has no descriptors left for further connections")]
    Full,
}

impl Reason {
    /// Returns the finding of the scanner, if it is one.
    pub(crate) fn found(&self) -> Option<&Found> {
        match self {
            Reason::Found(found) | Reason::FoundOnly(found) | Reason::Redacted(found) => Some(found),
            _ => None,
        }
    }

    /// Returns true if it is the reason why a name has no address.
    pub fn is_about_a_name(&self) -> bool {
        matches!(self, Reason::Name(_) | Reason::ObservedName(_))
    }
}

/// Name of the level that the flags of `hutch run` make.
pub const FLAGS: &str = "--allow";
/// Begin of the name of the policy that `hutch allow` writes for one Sandbox. The name of the Sandbox follows.
pub const OWN_POLICY: &str = "allow-";

/// The level that does not allow a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Name of the level; empty if no level has rules.
    pub level: String,
    /// The rule that denies it; without one, no rule allows it.
    pub rule: Option<String>,
    /// Condition because of which it is denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmet: Option<Box<Unmet>>,
}

impl fmt::Display for Denial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denial { level, rule, unmet } = self;
        match rule {
            Some(rule) => write!(formatter, "rule {rule:?} of policy {level:?} denies it"),
            None if level.is_empty() => formatter.write_str("nothing allows it"),
            None if level == FLAGS => formatter.write_str("no --allow names it"),
            None => write!(formatter, "no rule of policy {level:?} allows it"),
        }?;
        unmet.as_ref().map_or(Ok(()), |unmet| write!(formatter, ": {unmet}"))
    }
}

impl Denial {
    /// Returns the first of these opinions that denies, of the levels with this effect.
    pub(crate) fn first(opinions: &[Opinion<'_>], mode: Mode) -> Option<Denial> {
        let denies =
            |opinion: &&Opinion<'_>| opinion.decision == Decision::Deny && opinion.level.mode == mode;
        opinions.iter().find(denies).map(Denial::of)
    }

    /// Returns the denial of an opinion that denies.
    pub fn of(opinion: &Opinion<'_>) -> Denial {
        let Opinion { level, rule, unmet, .. } = opinion;
        let unmet = unmet.clone().map(Box::new);
        Denial { level: level.name.clone(), rule: rule.map(str::to_owned), unmet }
    }
}

fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        503 => "Service Unavailable",
        _ => "Bad Gateway",
    }
}

impl Refusal {
    /// Returns the status of HTTP that answers it.
    pub(crate) fn status(&self) -> u16 {
        match self.reason {
            Reason::Unreachable(_) | Reason::Full => 502,
            Reason::Unrecorded | Reason::NoRoom => 503,
            _ => 403,
        }
    }

    /// Returns how its destination can be allowed, as the end of a message, or why it cannot. Empty if a policy must change,
    /// which the reason names.
    pub(crate) fn advice(&self, sandbox: &Identity) -> String {
        let Refusal { destination, reason: Reason::Denied(Denial { level, rule: None, .. }) } = self else {
            return String::new();
        };
        let Identity { name, namespace, .. } = sandbox;
        if level == FLAGS {
            return advice(destination);
        }
        let is_own = level.strip_prefix(OWN_POLICY) == Some(name);
        let Ok(Destination { host, .. }) = destination.parse() else { return String::new() };
        let is_open = match host {
            Host::Name(_) => true,
            Host::Address(address) => check_address(address, &[], &[]).is_ok(),
        };
        match !name.is_empty() && (level.is_empty() || is_own) && is_open {
            true => format!("; to allow it: hutch allow -n {namespace} {name} {destination}"),
            false => String::new(),
        }
    }
}

/// Returns how the flags of `hutch run` open an address of a host that is allowed.
pub fn private_advice(address: IpAddr) -> String {
    format!("; --allow-private {address} opens it")
}

/// Returns how the flags of `hutch run` can allow a destination that none of them names, or why they cannot.
pub fn advice(destination: &str) -> String {
    let allow = format!("--allow {destination}");
    let Ok(Destination { host: Host::Address(address), .. }) = destination.parse() else {
        return format!("; {allow} allows it");
    };
    match check_address(address, &[], &[]) {
        Ok(()) => format!("; {allow} allows it"),
        Err(never @ (Forbidden::Metadata | Forbidden::NoHost)) => format!(": {never}"),
        Err(_) => format!("; {allow} with --allow-private {address} allows it"),
    }
}

/// Returns the body of an answer with the reason, and with advice at its end: `application/problem+json`.
pub(crate) fn problem(refusal: &Refusal, status: u16, advice: &str) -> String {
    let title = title(status);
    let detail = format!("refused {}: {}{advice}", refusal.destination, refusal.reason);
    // With an end of the line: most readers are at a terminal.
    format!(
        "{}\n",
        serde_json::json!({"type": "about:blank", "title": title, "status": status, "detail": detail})
    )
}

/// Reads the first bytes of a client that is refused, unless it waits for the server to speak, and classifies them.
pub(crate) async fn first_of_refused(client: &mut TcpStream, first: &mut Vec<u8>) -> First {
    // Not within the future, which is part of that of every connection.
    first.reserve(4096);
    let read = async {
        loop {
            match classify(first) {
                First::Incomplete if first.len() < first::LIMIT => {}
                found => return found,
            }
            // One that fails sends no more.
            if client.read_buf(first).await.unwrap_or(0) == 0 {
                return First::Other;
            }
        }
    };
    timeout(SPEAKS, read).await.unwrap_or(First::Other)
}

/// Sends the reason of a refusal to a client that speaks HTTP, with advice, and ends the connection.
pub(crate) async fn answer(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    status: u16,
    refusal: &Refusal,
    advice: &str,
) {
    let body = problem(refusal, status, advice);
    let head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: application/problem+json\r\nConnection: close",
        title(status)
    );
    let head = match status {
        407 => head + "\r\nProxy-Authenticate: Basic realm=\"hutch\"",
        _ => head,
    };
    let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let sent = async {
        client.write_all(answer.as_bytes()).await?;
        client.flush().await
    };
    if let Ok(Ok(())) = timeout(SPEAKS, sent).await {
        let _ = client.shutdown().await;
        // Closing before everything is read would be a reset, which takes the answer from the client.
        let mut rest = tokio::io::sink();
        let _ = timeout(REST_TIME, tokio::io::copy(&mut client.take(REST), &mut rest)).await;
    }
}

/// Makes the end of a connection an error for its client, so that it does not look like an empty answer.
pub(crate) fn reset(client: &TcpStream) {
    let _ = set_socket_linger(client, Some(Duration::ZERO));
}

/// Makes the end of a connection orderly again: bytes that wait to be sent are sent first.
pub(crate) fn close(connection: &TcpStream) {
    let _ = set_socket_linger(connection, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_allows_the_destination_and_nothing_where_a_policy_must_change() {
        let advice = |level: &str, rule: Option<&str>, name: &str, destination: &str| {
            let denial = Denial { level: level.to_owned(), rule: rule.map(str::to_owned), unmet: None };
            let refusal = Refusal { destination: destination.to_owned(), reason: Reason::Denied(denial) };
            let (name, namespace) = (name.to_owned(), "team".to_owned());
            refusal.advice(&Identity { name, namespace, ..Identity::default() })
        };
        let allow = "; to allow it: hutch allow -n team mine a.example:443";
        for (level, rule, name, destination, expected) in [
            (FLAGS, None, "", "a.example:443", "; --allow a.example:443 allows it"),
            (
                FLAGS,
                None,
                "",
                "10.1.2.3:443",
                "; --allow 10.1.2.3:443 with --allow-private 10.1.2.3 allows it",
            ),
            ("", None, "mine", "a.example:443", allow),
            ("allow-mine", None, "mine", "a.example:443", allow),
            ("allow-other", None, "mine", "a.example:443", ""),
            ("allow-mine", Some("x"), "mine", "a.example:443", ""),
            ("team", None, "mine", "a.example:443", ""),
            ("", None, "", "a.example:443", ""),
            ("", None, "mine", "10.1.2.3:443", ""),
            ("", None, "mine", "GET https://a.example:443/", ""),
        ] {
            assert_eq!(advice(level, rule, name, destination), expected, "{level} {destination}");
        }
        let other = Refusal { destination: "a.example:443".to_owned(), reason: Reason::TooMany };
        assert_eq!(other.advice(&Identity { name: "mine".to_owned(), ..Identity::default() }), "");
    }
}
