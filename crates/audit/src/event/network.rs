//! Connections, requests and lookups of a sandbox.

use std::net::IpAddr;
use std::time::SystemTime;

use serde_json::Value;

use super::{Event, Kind, Principal, Sandbox, Verdict, endpoint, long, user};
use crate::ocsf::{Endpoint, HttpRequest, HttpResponse, Query, Traffic, Url};
use crate::text::Text;

/// Maximum calls of JSON-RPC that an event names.
const CALLS_MAX: usize = 8;

/// Activity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionActivity {
    /// It was opened.
    Open = 1,
    /// It has ended.
    Close = 2,
    /// It was cut off.
    Reset = 3,
    /// It could not be made.
    Fail = 4,
    /// It was refused.
    Refuse = 5,
    /// Bytes of an open one.
    Traffic = 6,
}

/// Connection of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Connection<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Activity.
    pub activity: ConnectionActivity,
    /// Host, as the sandbox named it.
    pub host: &'a str,
    /// Address that was dialed.
    pub address: Option<IpAddr>,
    /// Port.
    pub port: Option<u16>,
    /// Bytes that the sandbox has received and sent.
    pub traffic: Option<(u64, u64)>,
    /// Number of connections that this event stands for, if it is not one.
    pub count: Option<u32>,
    /// Decision.
    pub verdict: Verdict<'a>,
}

/// Request of HTTP.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Method.
    pub method: &'a str,
    /// Host, as the sandbox named it.
    pub host: &'a str,
    /// Port.
    pub port: Option<u16>,
    /// Path; its query is not recorded.
    pub path: &'a str,
    /// Methods of JSON-RPC in its body, if a rule judges them.
    pub calls: &'a [String],
    /// Status of the answer, if there is one.
    pub status: Option<u16>,
    /// Decision.
    pub verdict: Verdict<'a>,
}

/// Request of HTTP of a caller to a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Routed<'a> {
    /// Caller.
    pub principal: Principal<'a>,
    /// Address of the caller.
    pub source: Option<IpAddr>,
    /// Sandbox; none if the request does not name one.
    pub sandbox: Option<Sandbox<'a>>,
    /// Port of the sandbox.
    pub port: Option<u16>,
    /// Method.
    pub method: &'a str,
    /// Path; its query is not recorded.
    pub path: &'a str,
    /// Program of the caller.
    pub user_agent: Option<&'a str>,
    /// Status of the answer; none before it.
    pub status: Option<u16>,
    /// Number of equal requests that this event stands for, if it is not one.
    pub count: Option<u32>,
    /// Decision.
    pub verdict: Verdict<'a>,
}

/// Client of a gateway that has no sandbox, and is refused.
#[derive(Debug, Clone, Copy)]
pub struct Unidentified<'a> {
    /// Address of the client.
    pub source: IpAddr,
    /// Decision.
    pub verdict: Verdict<'a>,
}

/// Lookup of a name.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Name.
    pub name: &'a str,
    /// Type of the record, such as `A`.
    pub kind: Option<&'a str>,
    /// Code of the answer.
    pub code: u16,
    /// Decision.
    pub verdict: Verdict<'a>,
}

impl Event {
    /// Returns the event of a connection.
    pub fn connection(time: SystemTime, connection: &Connection<'_>) -> Event {
        let activity = connection.activity as u32;
        let mut event = Event::new(time, Kind::Connection, activity, Some(&connection.verdict));
        event.src_endpoint = Some(endpoint(&connection.sandbox));
        event.dst_endpoint = Some(destination(connection.host, connection.address, connection.port));
        event.count = connection.count;
        event.traffic = connection.traffic.map(|(bytes_in, bytes_out)| Traffic {
            bytes: long(bytes_in.saturating_add(bytes_out)),
            bytes_in: long(bytes_in),
            bytes_out: long(bytes_out),
        });
        event.about(&connection.sandbox)
    }

    /// Returns the event of a request.
    pub fn request(time: SystemTime, request: &Request<'_>) -> Event {
        let activity = method(request.method);
        let mut event = Event::new(time, Kind::Http, activity, Some(&request.verdict));
        event.src_endpoint = Some(endpoint(&request.sandbox));
        event.dst_endpoint = Some(destination(request.host, None, request.port));
        event.http_request = Some(HttpRequest {
            http_method: Text::words(request.method),
            url: Url {
                path: Text::path(request.path),
                hostname: Some(Text::host(request.host)),
                port: request.port,
                scheme: None,
            },
            user_agent: None,
        });
        event.http_response = request.status.map(|code| HttpResponse { code });
        if !request.calls.is_empty() {
            let calls = request.calls.iter().take(CALLS_MAX);
            let calls: Vec<_> = calls.map(|call| Value::from(Text::words(call).as_str())).collect();
            event.unmapped.insert("calls".to_owned(), calls.into());
        }
        let event = event.about(&request.sandbox);
        if activity == 99 { event.named(request.method) } else { event }
    }

    /// Returns the event of a request of a caller to a sandbox.
    pub fn routed(time: SystemTime, routed: &Routed<'_>) -> Event {
        let activity = method(routed.method);
        let mut event = Event::new(time, Kind::Http, activity, Some(&routed.verdict));
        event.actor = Some(user(&routed.principal));
        event.src_endpoint = Some(match routed.source {
            Some(ip) => Endpoint { ip: Some(ip), ..Endpoint::default() },
            None => Endpoint { svc_name: Some(Text::name("hutch")), ..Endpoint::default() },
        });
        let to = routed.sandbox.as_ref().map(endpoint).unwrap_or_default();
        event.dst_endpoint = Some(Endpoint { port: routed.port, svc_name: Some(Text::name("router")), ..to });
        event.http_request = Some(HttpRequest {
            http_method: Text::words(routed.method),
            url: Url { path: Text::path(routed.path), hostname: None, port: routed.port, scheme: None },
            user_agent: routed.user_agent.map(Text::agent),
        });
        event.http_response = routed.status.map(|code| HttpResponse { code });
        event.count = routed.count;
        let event = match &routed.sandbox {
            Some(sandbox) => event.about(sandbox),
            None => event,
        };
        if activity == 99 { event.named(routed.method) } else { event }
    }

    /// Returns the event of a client that has no sandbox.
    pub fn unidentified(time: SystemTime, client: &Unidentified<'_>) -> Event {
        let activity = ConnectionActivity::Refuse as u32;
        let mut event = Event::new(time, Kind::Connection, activity, Some(&client.verdict));
        event.src_endpoint = Some(Endpoint { ip: Some(client.source), ..Endpoint::default() });
        event.dst_endpoint = Some(Endpoint { svc_name: Some(Text::name("gateway")), ..Endpoint::default() });
        event
    }

    /// Returns the event of a lookup.
    pub fn lookup(time: SystemTime, lookup: &Lookup<'_>) -> Event {
        let mut event = Event::new(time, Kind::Dns, 2, Some(&lookup.verdict));
        event.src_endpoint = Some(endpoint(&lookup.sandbox));
        event.query = Some(Query { hostname: Text::host(lookup.name), kind: lookup.kind.map(Text::name) });
        event.rcode_id = Some(code(lookup.code));
        event.about(&lookup.sandbox)
    }
}

fn destination(host: &str, ip: Option<IpAddr>, port: Option<u16>) -> Endpoint {
    let ip = ip.or_else(|| host.trim_matches(['[', ']']).parse().ok());
    Endpoint { hostname: Some(Text::host(host)), ip, port, ..Endpoint::default() }
}

/// Returns the activity of a method.
fn method(name: &str) -> u32 {
    const METHODS: [&str; 9] =
        ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE", "PATCH"];
    METHODS.iter().zip(1..).find(|(method, _)| **method == name).map_or(99, |(_, activity)| activity)
}

/// Returns the code of an answer as the schema numbers it.
fn code(code: u16) -> u16 {
    match code {
        0..=11 | 16..=23 => code,
        12..=15 | 24..=3840 | 4096..=65534 => 24,
        3841..=4095 | 65535 => 25,
    }
}
