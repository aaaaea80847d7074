//! Probes of containers: when they are due, and what each kind does.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hutch_kubelet::Exit;
use hutch_screen::Origin;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::time::{Instant, sleep, timeout};

use crate::container::{Running, exit_of};
use crate::dial::dial;
use crate::live::Live;

/// Time for which a container that has just started is probed at short intervals, so that it counts as ready within
/// milliseconds of being so. Failures in this time are not counted.
const EAGER_FOR: Duration = Duration::from_secs(1);
/// First of these intervals; each is half as long again.
const EAGER_FIRST: Duration = Duration::from_millis(1);
/// Longest of them.
const EAGER_LONGEST: Duration = Duration::from_millis(25);
/// Maximum requests of one attempt that follows redirects, as of a kubelet.
const MAX_REQUESTS: usize = 10;
/// Most bytes of an exec probe's output, or of the body of a redirect, that show in an event.
const MAX_OUTPUT_BYTES: usize = 512;

/// Purpose of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Startup,
    Readiness,
    Liveness,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Readiness => "Readiness",
            Kind::Liveness => "Liveness",
        }
    }
}

/// Result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// One attempt failed; that may not decide anything yet.
    Failed(String),
    /// One attempt succeeded, with a warning.
    Warned(String),
    /// Enough attempts in a row succeeded.
    Healthy,
    /// Enough attempts in a row failed.
    Unhealthy,
}

/// Text of the event of a successful attempt, if there is one.
type Warning = Option<String>;

/// Where a probe looks.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) live: Arc<Live>,
    pub(crate) running: Arc<Running>,
    pub(crate) network: Arc<OwnedFd>,
    pub(crate) address: Ipv4Addr,
    pub(crate) container: Container,
}

impl Target {
    /// Returns output as it may be in an event, where it is read like a log.
    fn shown(&self, output: &[u8]) -> String {
        let id = &self.live.id;
        let pod = format!("{}/{}", id.namespace, id.name).into();
        let origin = Origin { pod, part: self.container.name.as_str().into() };
        let output = self.live.log_screen.text(origin, output);
        String::from_utf8_lossy(&output).trim().to_owned()
    }
}

/// Counts attempts: a pure part of the probe.
#[derive(Debug)]
struct Tally {
    success_threshold: u32,
    failure_threshold: u32,
    row: u32,
    last: Option<bool>,
    verdict: Option<bool>,
}

impl Tally {
    fn new(probe: &Probe) -> Tally {
        let threshold = |value: Option<i32>, default| {
            value.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(default)
        };
        Tally {
            success_threshold: threshold(probe.success_threshold, 1),
            failure_threshold: threshold(probe.failure_threshold, 3),
            row: 0,
            last: None,
            verdict: None,
        }
    }

    /// Adds an attempt and gives the verdict when it changes.
    fn add(&mut self, success: bool) -> Option<bool> {
        self.row = if self.last == Some(success) { self.row + 1 } else { 1 };
        self.last = Some(success);
        let enough = if success { self.success_threshold } else { self.failure_threshold };
        (self.row >= enough && self.verdict != Some(success)).then(|| {
            self.verdict = Some(success);
            success
        })
    }
}

/// Probes until it is aborted or `report` returns false. A startup probe ends with its first verdict.
pub(crate) async fn run(kind: Kind, probe: Probe, target: Target, report: impl Fn(Finding) -> bool) {
    let seconds = |value: Option<i32>, default: u64| {
        Duration::from_secs(value.and_then(|n| u64::try_from(n).ok()).unwrap_or(default))
    };
    let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
    let limit = seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1));
    let delay = seconds(probe.initial_delay_seconds, 0);
    sleep(delay).await;
    let mut tally = Tally::new(&probe);
    let began = Instant::now();
    let mut pause = EAGER_FIRST;
    loop {
        // Waits while the Pod is frozen, and keeps it from being frozen during the probe.
        let Some(visit) = target.live.visit().await else { return };
        let result = match timeout(limit, attempt(&probe, &target)).await {
            Ok(result) => result,
            Err(_) => Err(format!("timed out after {limit:?}")),
        };
        drop(visit);
        let eager =
            kind != Kind::Liveness && delay.is_zero() && tally.last.is_none() && began.elapsed() < EAGER_FOR;
        if result.is_err() && eager {
            sleep(pause).await;
            pause = (pause + pause / 2).min(EAGER_LONGEST);
            continue;
        }
        let success = result.is_ok();
        let mut wanted = match result {
            Ok(None) => true,
            Ok(Some(warning)) => report(Finding::Warned(warning)),
            Err(why) => report(Finding::Failed(why)),
        };
        if let Some(verdict) = tally.add(success) {
            wanted &= report(if verdict { Finding::Healthy } else { Finding::Unhealthy });
            wanted &= kind != Kind::Startup;
        }
        if !wanted {
            return;
        }
        sleep(period).await;
    }
}

/// One attempt; the error is for an event.
async fn attempt(probe: &Probe, target: &Target) -> Result<Warning, String> {
    if let Some(get) = &probe.http_get {
        return http_get(get, target).await;
    }
    if let Some(tcp) = &probe.tcp_socket {
        let port = port_of(&tcp.port, &target.container)?;
        let connected = dial(&target.network, target.address, port).await;
        return connected.map(|_| None).map_err(|e| format!("dial tcp {}:{port}: {e}", target.address));
    }
    let command = probe.exec.as_ref().and_then(|exec| exec.command.clone()).unwrap_or_default();
    exec(command, target).await.map(|()| None)
}

/// The number of a port that may be named.
fn port_of(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
            named.map(|p| p.container_port).or_else(|| name.parse().ok())
        }
    };
    number.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0).ok_or_else(|| format!("no port {port:?}"))
}

/// `GET`, healthy with status 200 to 399. A redirect is followed within the host, as by a kubelet; one that is not ends the
/// attempt with a warning.
pub(crate) async fn http_get(get: &HTTPGetAction, target: &Target) -> Result<Warning, String> {
    let mut port = port_of(&get.port, &target.container)?;
    let path = get.path.as_deref().unwrap_or("");
    let mut path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let named = get.host.as_deref().filter(|host| !host.is_empty());
    let name = named.map_or_else(|| target.address.to_string(), str::to_owned);
    for _ in 0..MAX_REQUESTS {
        let host = if named.is_some() { name.clone() } else { format!("{name}:{port}") };
        let Answer { status, location, body } = get_once(get, target, &path, port, &host).await?;
        let next = location.and_then(|to| redirected(&to, &path, port, &name));
        match (next, status.as_u16()) {
            (Some(next), _) => (path, port) = next,
            (None, 200..300) => return Ok(None),
            (None, 300..400) => {
                return Ok(Some(format!(
                    "Probe terminated redirects, Response body: {}",
                    target.shown(&body)
                )));
            }
            (None, code) => return Err(format!("HTTP probe failed with statuscode: {code}")),
        }
    }
    Err(format!("Get {path:?}: stopped after {MAX_REQUESTS} redirects"))
}

/// Returns path and port of a redirect; `None` for another host or protocol, and for an invalid address.
fn redirected(location: &str, path: &str, port: u16, host: &str) -> Option<(String, u16)> {
    let location = location.split('#').next().unwrap_or_default();
    let absolute = match location.strip_prefix("//") {
        Some(rest) => format!("http://{rest}"),
        None => location.to_owned(),
    };
    if absolute.contains("://") {
        let uri: http::Uri = absolute.parse().ok()?;
        let same = uri.scheme_str() == Some("http") && uri.host() == Some(host);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        return same.then(|| (path.to_owned(), uri.port_u16().unwrap_or(80)));
    }
    let before = path.split('?').next().unwrap_or_default();
    let next = match location.chars().next()? {
        '/' => location.to_owned(),
        '?' => format!("{before}{location}"),
        _ => format!("{}/{location}", before.rsplit_once('/').map_or("", |(folder, _)| folder)),
    };
    next.parse::<http::uri::PathAndQuery>().ok().map(|_| (next, port))
}

/// Answer to one request.
struct Answer {
    status: http::StatusCode,
    /// Where a status that clients follow leads.
    location: Option<String>,
    /// Start of the body of a redirect.
    body: Vec<u8>,
}

impl Answer {
    async fn read(response: http::Response<hyper::body::Incoming>) -> Answer {
        let status = response.status();
        let location = response.headers().get(http::header::LOCATION).and_then(|value| value.to_str().ok());
        let location = location.filter(|_| matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308));
        let location = location.map(str::to_owned);
        let (mut incoming, mut body) = (response.into_body(), Vec::new());
        // What cannot be read is missing from the event only.
        while status.is_redirection()
            && body.len() < MAX_OUTPUT_BYTES
            && let Some(Ok(frame)) = incoming.frame().await
        {
            body.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        }
        body.truncate(MAX_OUTPUT_BYTES);
        Answer { status, location, body }
    }
}

/// One request and its answer.
async fn get_once(
    get: &HTTPGetAction,
    target: &Target,
    path: &str,
    port: u16,
    host: &str,
) -> Result<Answer, String> {
    let url = format!("http://{}:{port}{path}", target.address);
    let fail = |e: &dyn std::fmt::Display| format!("Get {url:?}: {e}");
    let stream = dial(&target.network, target.address, port).await.map_err(|e| fail(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| fail(&e))?;
    let mut request =
        http::Request::get(path).header("user-agent", "kube-probe/1.36").header("accept", "*/*");
    let headers = get.http_headers.as_deref().unwrap_or(&[]);
    if !headers.iter().any(|header| header.name.eq_ignore_ascii_case("host")) {
        request = request.header("host", host);
    }
    for header in headers {
        request = request.header(&header.name, &header.value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| fail(&e))?;
    let connection = async {
        // Its failure shows in the answer that does not come.
        let _ = connection.await;
        std::future::pending::<()>().await
    };
    let answer = async { Ok(Answer::read(sender.send_request(request).await?).await) };
    tokio::select! {
        answer = answer => answer.map_err(|e: hyper::Error| fail(&e)),
        () = connection => Err(fail(&"the connection was closed")),
    }
}

/// A command in the container, healthy when it exits with 0.
pub(crate) async fn exec(command: Vec<String>, target: &Target) -> Result<(), String> {
    use tokio::io::AsyncReadExt;
    let (ends, stdio) = crate::stdio::pipes(false, true, false).map_err(|e| e.to_string())?;
    let mut exec = target.running.exec(command, false, stdio).await?;
    exec.started().await.map_err(|failed| failed.reason)?;
    let mut output = Vec::new();
    if let Some(stdout) = ends.stdout {
        let mut stdout = stdout.take(MAX_OUTPUT_BYTES as u64);
        // What cannot be read is missing from the event only.
        let _ = stdout.read_to_end(&mut output).await;
    }
    match exit_of(exec.exited().await) {
        Exit::Code(0) => Ok(()),
        Exit::Code(code) => Err(format!("command exited with {code}: {}", target.shown(&output))),
        Exit::Signal(signal) => Err(format!("command was killed by signal {signal}")),
        Exit::OutOfMemory => Err("command ran out of memory".into()),
        Exit::Failed(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_need_their_thresholds() {
        let probe = Probe { success_threshold: Some(2), failure_threshold: Some(3), ..Probe::default() };
        let mut tally = Tally::new(&probe);
        let results = [true, true, true, false, false, true, false, false, false, false, true, true];
        let verdicts: Vec<Option<bool>> = results.into_iter().map(|r| tally.add(r)).collect();
        let (none, yes, no) = (None, Some(true), Some(false));
        assert_eq!(verdicts, [none, yes, none, none, none, none, none, none, no, none, none, yes]);
    }

    #[test]
    fn redirect_is_followed_within_the_host() {
        let to = |location: &str| redirected(location, "/a/b?c", 8080, "10.89.0.1");
        let next = |path: &str, port| Some((path.to_owned(), port));
        assert_eq!(to("/ready?x#y"), next("/ready?x", 8080));
        assert_eq!(to("d"), next("/a/d", 8080));
        assert_eq!(to("?d"), next("/a/b?d", 8080));
        assert_eq!(to("http://10.89.0.1:81/x"), next("/x", 81));
        assert_eq!(to("//10.89.0.1"), next("/", 80));
        for elsewhere in
            ["http://169.254.169.254/", "https://10.89.0.1/", "//other/x", "file:///x", "", "/\u{7f}"]
        {
            assert_eq!(to(elsewhere), None, "{elsewhere:?}");
        }
    }

    #[test]
    fn ports_have_numbers_or_names() {
        let container: Container = serde_json::from_value(
            serde_json::json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}),
        )
        .unwrap();
        assert_eq!(port_of(&IntOrString::Int(80), &container), Ok(80));
        assert_eq!(port_of(&IntOrString::String("web".into()), &container), Ok(8080));
        assert_eq!(port_of(&IntOrString::String("81".into()), &container), Ok(81));
        for bad in [IntOrString::Int(0), IntOrString::Int(70000), IntOrString::String("x".into())] {
            assert!(port_of(&bad, &container).is_err());
        }
    }
}
