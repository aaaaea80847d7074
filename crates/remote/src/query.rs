//! Query parameters of the stream subresources of a Pod.

use jiff::Timestamp;

use crate::status::Refusal;
use crate::{ExecRequest, LogRequest};

/// Decoded parameters of a request, in order.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(uri: &http::Uri) -> Self {
        let text = uri.query().unwrap_or_default();
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(pairs.collect())
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    fn first<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// Parses a boolean like the API server: only absence, `false` and `0` are false.
    fn flag(&self, name: &str) -> bool {
        self.first(name).is_some_and(|value| !value.eq_ignore_ascii_case("false") && value != "0")
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.first(name) else { return Ok(None) };
        let number = value.parse();
        number
            .map(Some)
            .map_err(|_| Refusal::Malformed(format!("{name}: {value:?} is not a number of 0 or more")))
    }

    /// Returns the request of `exec`.
    pub(crate) fn exec(&self) -> Result<ExecRequest, Refusal> {
        let request = self.streams()?;
        if request.command.is_empty() {
            return Err(Refusal::Malformed("you must specify at least one command for the container".into()));
        }
        Ok(request)
    }

    /// Returns the request of `attach`.
    pub(crate) fn attach(&self) -> Result<ExecRequest, Refusal> {
        Ok(ExecRequest { command: Vec::new(), ..self.streams()? })
    }

    fn streams(&self) -> Result<ExecRequest, Refusal> {
        let tty = self.flag("tty");
        let request = ExecRequest {
            container: self.container(),
            command: self.all("command").map(str::to_owned).collect(),
            stdin: self.flag("stdin"),
            stdout: self.flag("stdout"),
            // A terminal has one output; a client that requests both streams receives that one.
            stderr: self.flag("stderr") && !tty,
            tty,
        };
        if !request.stdin && !request.stdout && !request.stderr {
            return Err(Refusal::Malformed("you must specify at least 1 of stdin, stdout, stderr".into()));
        }
        Ok(request)
    }

    fn container(&self) -> Option<String> {
        self.first("container").filter(|name| !name.is_empty()).map(str::to_owned)
    }

    /// Returns the selected part of the log; `now` converts `sinceTime` to an age.
    pub(crate) fn logs(&self, now: Timestamp) -> Result<LogRequest, Refusal> {
        let mut since_seconds = self.number("sinceSeconds")?;
        if let Some(text) = self.first("sinceTime") {
            if since_seconds.is_some() {
                return Err(Refusal::Malformed(
                    "at most one of sinceTime or sinceSeconds may be specified".into(),
                ));
            }
            let time: Timestamp = text
                .parse()
                .map_err(|_| Refusal::Malformed(format!("sinceTime: {text:?} is not an RFC 3339 time")))?;
            since_seconds = Some(now.as_second().saturating_sub(time.as_second()).try_into().unwrap_or(0));
        }
        Ok(LogRequest {
            container: self.container(),
            follow: self.flag("follow"),
            tail_lines: self.number("tailLines")?,
            since_seconds,
            timestamps: self.flag("timestamps"),
            limit_bytes: self.number("limitBytes")?,
            previous: self.flag("previous"),
        })
    }

    /// Returns the ports of a WebSocket port-forward: `ports=80&ports=81,82`.
    pub(crate) fn ports(&self) -> Result<Vec<u16>, Refusal> {
        let values: Vec<&str> = self.all("ports").collect();
        if values.is_empty() {
            return Err(Refusal::Malformed("query parameter \"ports\" is required".into()));
        }
        values.iter().flat_map(|value| value.split(',')).map(port).collect()
    }
}

/// Parses a port number in decimal, 1 to 65535.
pub(crate) fn port(text: &str) -> Result<u16, Refusal> {
    // A port has no sign.
    let number = text.parse::<u16>().ok().filter(|_| !text.starts_with('+'));
    let number = number.ok_or_else(|| Refusal::Malformed(format!("unable to parse {text:?} as a port")))?;
    if number == 0 {
        return Err(Refusal::Malformed(format!("port {text:?} must be > 0")));
    }
    Ok(number)
}

/// Decodes `application/x-www-form-urlencoded`: `+` is a space, `%XX` a byte, other bytes are literal.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        let escaped = hex.filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        match (bytes[at], escaped.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (other, _) => out.push(other),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::of(&format!("http://x/p?{text}").parse().unwrap())
    }

    #[test]
    fn a_command_keeps_order_and_bytes() {
        let exec = query("command=sh&command=-c&command=echo+%22a%2Bb%22%20%C3%A9&stdout=true&container=c")
            .exec()
            .unwrap();
        assert_eq!(exec.command, ["sh", "-c", "echo \"a+b\" é"]);
        assert_eq!(exec.container.as_deref(), Some("c"));
        assert!(exec.stdout && !exec.stdin && !exec.stderr && !exec.tty);
    }

    #[test]
    fn flags_are_parsed_like_the_api_server() {
        for (text, stdin) in
            [("stdin=1", true), ("stdin=", true), ("stdin=False", false), ("stdin=0", false), ("", false)]
        {
            assert_eq!(query(&format!("command=x&stdout=1&{text}")).exec().unwrap().stdin, stdin, "{text}");
        }
        assert!(!query("command=x&tty=1&stdout=1&stderr=1").exec().unwrap().stderr);
    }

    #[test]
    fn invalid_requests_are_refused() {
        let none = query("command=x").exec().unwrap_err().to_string();
        assert_eq!(none, "you must specify at least 1 of stdin, stdout, stderr");
        assert!(query("stdout=1").exec().is_err());
        assert!(query("stdout=1").attach().is_ok());
        for bad in ["", "ports=", "ports=0", "ports=65536", "ports=80,x", "ports=%2B80"] {
            assert!(query(bad).ports().is_err(), "{bad}");
        }
        assert_eq!(query("ports=80&ports=81,82").ports().unwrap(), [80, 81, 82]);
    }

    #[test]
    fn a_truncated_escape_is_literal() {
        for text in ["%", "%4", "%zz", "%+1"] {
            assert!(decode(text).starts_with('%'), "{text}");
        }
    }

    #[test]
    fn since_time_becomes_an_age() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let logs = query("sinceTime=2026-01-01T00:00:00Z&tailLines=5&follow=true").logs(now).unwrap();
        assert_eq!((logs.since_seconds, logs.tail_lines, logs.follow), (Some(60), Some(5), true));
        assert_eq!(query("sinceTime=2027-01-01T00:00:00Z").logs(now).unwrap().since_seconds, Some(0));
        assert!(query("sinceTime=yesterday").logs(now).is_err());
        assert!(query("tailLines=-1").logs(now).is_err());
        assert!(query("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z").logs(now).is_err());
    }
}
