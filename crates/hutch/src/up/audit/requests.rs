//! Requests through the router as events of the audit log, and those among them that read or write files, or run commands.

use std::sync::Arc;
use std::time::SystemTime;

use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, TryFutureExt};
use hutch_apiserver::{Audit, Refusals};
use hutch_audit::event::{Decision, Exec, FileAccess, FileActivity, Principal, Routed, Sandbox, Verdict};
use hutch_audit::{Event, Record};
use hutch_router::{Answered, Exchange};
use hutch_sandboxd::legacy::unquote;
use hutch_sandboxd::{rpc, shlex};

use super::wire::FrontLog;

/// Ports of the files API of sandboxd: REST, and the contract of the Python runtime.
const REST_PORT: u16 = 8080;
const RUNTIME_PORT: u16 = 8888;
/// Port of the processes of sandboxd.
const RPC_PORT: u16 = 9090;
/// Path of a file whose name is in the body of the request, and a command that could not be read.
const UNKNOWN: &str = "?";
/// Requests that name no Sandbox reach no files, and run nothing.
const NO_SANDBOX: Sandbox<'static> = Sandbox { namespace: "", name: "", uid: None };

/// Log of the router.
pub(in crate::up) struct RequestLog {
    front: Arc<FrontLog>,
    log: Arc<dyn Audit>,
    refusals: Refusals,
}

impl RequestLog {
    pub(in crate::up) fn new(front: Arc<FrontLog>) -> RequestLog {
        RequestLog { log: front.clone(), front, refusals: Refusals::default() }
    }
}

impl hutch_router::Audit for RequestLog {
    fn reads_body(&self, exchange: &Exchange<'_>) -> bool {
        let runs = match exchange.port {
            Some(RUNTIME_PORT) => unquote(exchange.path) == "/execute",
            Some(RPC_PORT) => rpc::runs(exchange.path),
            _ => false,
        };
        runs && exchange.method == "POST"
    }

    fn before(&self, exchange: &Exchange<'_>) -> Option<BoxFuture<'static, Result<(), String>>> {
        let now = SystemTime::now();
        let command = exchange.body.map(|body| executed(now, exchange, body));
        if !self.log.is_strict() {
            let room = match command {
                Some(command) => self.log.enqueue(Box::new(move || command)),
                None => self.front.room()?,
            };
            return Some(room.map(Ok).boxed());
        }
        let request = self.log.record(routed(now, exchange, None, None, Verdict::of(Decision::Allowed)));
        let both = [request].into_iter().chain(command.map(|command| self.log.record(command)));
        Some(try_join_all(both).map_ok(drop).boxed())
    }

    fn after(&self, exchange: &Exchange<'_>, answered: &Answered<'_>) {
        let decision = if answered.denied { Decision::Denied } else { Decision::Allowed };
        let (request, status) = (Owned::of(exchange), answered.status);
        let (time, refused) = (SystemTime::now(), answered.refused.map(str::to_owned));
        let make = move |count| {
            let success = refused.as_ref().map(|_| false);
            let verdict = Verdict { reason: refused.as_deref(), success, ..Verdict::of(decision) };
            routed(time, &request.exchange(), Some(status), count, verdict)
        };
        if exchange.caller.is_empty() {
            let source = exchange.source.and_then(|source| source.parse().ok());
            return self.refusals.add(&self.log, source, make);
        }
        self.log.push(Box::new(move || make(None)));
        if let Some((activity, path, is_folder)) = file(exchange) {
            let request = Owned::of(exchange);
            self.log.push(Box::new(move || {
                let success = Some(status < 400);
                let verdict = Verdict { success, ..Verdict::of(decision) };
                let file = (activity, path.as_str(), is_folder);
                accessed(time, &request.exchange(), file, verdict)
            }));
        }
    }
}

/// Copy of a request, of which the record is made later.
struct Owned {
    caller: String,
    source: Option<String>,
    method: String,
    path: String,
    user_agent: Option<String>,
    sandbox: Option<(String, String)>,
    uid: Option<String>,
    port: Option<u16>,
}

impl Owned {
    fn of(exchange: &Exchange<'_>) -> Owned {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Owned {
            caller: exchange.caller.to_owned(),
            source: owned(exchange.source),
            method: exchange.method.to_owned(),
            path: exchange.path.to_owned(),
            user_agent: owned(exchange.user_agent),
            sandbox: exchange.sandbox.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())),
            uid: owned(exchange.uid),
            port: exchange.port,
        }
    }

    fn exchange(&self) -> Exchange<'_> {
        Exchange {
            caller: &self.caller,
            source: self.source.as_deref(),
            method: &self.method,
            path: &self.path,
            user_agent: self.user_agent.as_deref(),
            sandbox: self.sandbox.as_ref().map(|(namespace, name)| (namespace.as_str(), name.as_str())),
            uid: self.uid.as_deref(),
            port: self.port,
            body: None,
            content_type: None,
        }
    }
}

fn accessed(
    time: SystemTime,
    exchange: &Exchange<'_>,
    (activity, path, is_folder): (FileActivity, &str, bool),
    verdict: Verdict<'_>,
) -> Record {
    let sandbox = sandbox(exchange).unwrap_or(NO_SANDBOX);
    let principal = Principal { name: exchange.caller, ..Principal::default() };
    let access = FileAccess { sandbox, principal, activity, path, is_folder, size: None, verdict };
    Event::file(time, &access).record()
}

/// Returns the record of a command in the body of a request.
fn executed(time: SystemTime, exchange: &Exchange<'_>, body: &[u8]) -> Record {
    let arguments = match exchange.port {
        Some(RPC_PORT) => {
            let command = rpc::command(exchange.content_type.unwrap_or_default(), body);
            command.unwrap_or_else(|| vec![UNKNOWN.to_owned()])
        }
        _ => {
            // As the runtime reads it: the last of several fields counts.
            let body = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
            let line = body["command"].as_str().unwrap_or(UNKNOWN).to_owned();
            // A line that cannot be split runs nothing.
            shlex::split(&line).unwrap_or_else(|_| vec![line])
        }
    };
    let sandbox = sandbox(exchange).unwrap_or(NO_SANDBOX);
    let principal = Principal { name: exchange.caller, ..Principal::default() };
    let (uid, verdict) = (uuid::Uuid::new_v4().to_string(), Verdict::of(Decision::Allowed));
    let exec = Exec { sandbox, container: None, principal, uid: &uid, arguments: &arguments, verdict };
    Event::exec(time, &exec).record()
}

fn sandbox<'a>(exchange: &Exchange<'a>) -> Option<Sandbox<'a>> {
    exchange.sandbox.map(|(namespace, name)| Sandbox { namespace, name, uid: exchange.uid })
}

fn routed(
    time: SystemTime,
    exchange: &Exchange<'_>,
    status: Option<u16>,
    count: Option<u32>,
    verdict: Verdict<'_>,
) -> Record {
    let routed = Routed {
        principal: Principal { name: exchange.caller, ..Principal::default() },
        source: exchange.source.and_then(|source| source.parse().ok()),
        sandbox: sandbox(exchange),
        port: exchange.port,
        method: exchange.method,
        path: exchange.path,
        user_agent: exchange.user_agent,
        status,
        count,
        verdict,
    };
    Event::routed(time, &routed).record()
}

/// Returns the activity, the path and true for a folder, of a request to the files API of sandboxd.
fn file(exchange: &Exchange<'_>) -> Option<(FileActivity, String, bool)> {
    let reads = matches!(exchange.method, "GET" | "HEAD");
    let (activity, path, is_folder) = match exchange.port? {
        REST_PORT => {
            let (route, path) = exchange.path.strip_prefix("/v1/")?.split_once('/')?;
            let activity = match (route, exchange.method) {
                ("files" | "stat" | "archive" | "watch", _) if reads => FileActivity::Read,
                ("files" | "archive" | "mode", "PUT") => FileActivity::Update,
                ("folders", "PUT") => FileActivity::Create,
                ("files", "DELETE") => FileActivity::Delete,
                ("move", "POST") => FileActivity::Rename,
                _ => return None,
            };
            (activity, path, matches!(route, "folders" | "archive" | "watch"))
        }
        RUNTIME_PORT => return file_of_runtime(exchange.method, &unquote(exchange.path)),
        _ => return None,
    };
    Some((activity, path.to_owned(), is_folder))
}

fn file_of_runtime(method: &str, path: &str) -> Option<(FileActivity, String, bool)> {
    if (method, path) == ("POST", "/upload") {
        return Some((FileActivity::Update, UNKNOWN.to_owned(), false));
    }
    let (route, path) = path.strip_prefix('/')?.split_once('/')?;
    let reads = matches!(method, "GET" | "HEAD") && matches!(route, "download" | "list" | "exists");
    reads.then(|| (FileActivity::Read, path.to_owned(), route == "list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange<'a>(method: &'a str, port: u16, path: &'a str) -> Exchange<'a> {
        Exchange {
            caller: "alice",
            source: None,
            method,
            path,
            user_agent: None,
            sandbox: Some(("team", "box")),
            uid: Some("u"),
            port: Some(port),
            body: None,
            content_type: None,
        }
    }

    #[test]
    fn requests_to_the_files_api_are_accesses_to_files() {
        use FileActivity::{Create, Delete, Read, Rename, Update};
        for (method, port, path, expected) in [
            ("GET", 8080, "/v1/files/a/b", Some((Read, "a/b", false))),
            ("PUT", 8080, "/v1/files/a", Some((Update, "a", false))),
            ("DELETE", 8080, "/v1/files/a", Some((Delete, "a", false))),
            ("PUT", 8080, "/v1/folders/a", Some((Create, "a", true))),
            ("POST", 8080, "/v1/move/a", Some((Rename, "a", false))),
            ("PUT", 8080, "/v1/archive/a", Some((Update, "a", true))),
            ("GET", 8080, "/v1/health", None),
            ("GET", 8888, "/download/a", Some((Read, "a", false))),
            ("GET", 8888, "/list/a", Some((Read, "a", true))),
            ("POST", 8888, "/upload", Some((Update, "?", false))),
            ("POST", 8888, "/%75pload", Some((Update, "?", false))),
            ("GET", 8888, "/downloa%64/a%20b", Some((Read, "a b", false))),
            ("POST", 8888, "/execute", None),
            ("GET", 3000, "/v1/files/a", None),
        ] {
            let found = file(&exchange(method, port, path));
            let expected = expected.map(|(activity, path, is_folder)| (activity, path.to_owned(), is_folder));
            assert_eq!(found, expected, "{method} {port} {path}");
        }
    }

    #[tokio::test]
    async fn request_is_recorded_with_its_caller_and_refused_logins_are_folded() {
        use hutch_router::Audit as _;

        let folder = tempfile::tempdir().unwrap();
        let log = super::super::AuditLog::open(&folder.path().join("audit"), true).unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let receiving = tokio::spawn(log.clone().receive(ours.into()));
        let requests = RequestLog::new(Arc::new(FrontLog::new(theirs.into(), true).unwrap()));
        let put = exchange("PUT", 8080, "/v1/files/a/ghp_0123456789abcdefghij");
        // A strict log has the record before the request is sent.
        requests.before(&put).unwrap().await.unwrap();
        // A program of a Sandbox may take any method for a request to do something.
        requests.before(&exchange("GET", 80, "/")).unwrap().await.unwrap();
        let execute = exchange("POST", 8888, "/%65xecute");
        assert!(requests.reads_body(&execute) && !requests.reads_body(&put));
        let body = br#"{"command":"first","command":"sh -c 'API_KEY=hunter2 ls'"}"#;
        requests.before(&Exchange { body: Some(body), ..execute }).unwrap().await.unwrap();
        requests.before(&Exchange { body: Some(b""), ..execute }).unwrap().await.unwrap();
        let call = exchange("POST", 9090, "/process.v1.ProcessService/Execute");
        let list = exchange("POST", 9090, "/process.v1.ProcessService/List");
        assert!(requests.reads_body(&call) && !requests.reads_body(&list));
        let body = br#"{"config":{"command":["sh","-c","API_KEY=hunter2 ls"]}}"#;
        for content_type in [Some("application/json"), None] {
            let call = Exchange { body: Some(body), content_type, ..call };
            requests.before(&call).unwrap().await.unwrap();
        }
        requests.after(&put, &Answered { status: 200, refused: None, denied: false });
        let unknown = Exchange { caller: "", ..exchange("GET", 80, "/") };
        for _ in 0..100 {
            requests
                .after(&unknown, &Answered { status: 401, refused: Some("unauthenticated"), denied: true });
        }
        tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
        drop(requests);
        receiving.await.unwrap().unwrap();
        log.close().await;
        let mut reader = hutch_audit::Reader::new(&folder.path().join("audit"), 0);
        let mut lines = Vec::new();
        while let Some(entry) = reader.read().unwrap() {
            let view = hutch_audit::View::parse(entry.event());
            if view.kind() != Some(hutch_audit::Kind::Log) {
                let text = view.to_string();
                let mut words: Vec<_> = text.split_whitespace().skip(1).collect();
                if let Some(at) = words.iter().position(|word| *word == "(exec") {
                    words[at + 1] = "ID";
                }
                lines.push(words.join(" "));
            }
        }
        assert_eq!(
            lines,
            [
                "http team/box allowed PUT team/box:8080/v1/files/a/*** (by alice)",
                "http team/box allowed GET team/box:80/ (by alice)",
                "http team/box allowed POST team/box:8888/%65xecute (by alice)",
                "exec team/box allowed sh -c 'API_KEY=*** ls' (exec ID by alice)",
                "http team/box allowed POST team/box:8888/%65xecute (by alice)",
                "exec team/box allowed ? (exec ID by alice)",
                "http team/box allowed POST team/box:9090/process.v1.ProcessService/Execute (by alice)",
                "exec team/box allowed sh -c 'API_KEY=*** ls' (exec ID by alice)",
                "http team/box allowed POST team/box:9090/process.v1.ProcessService/Execute (by alice)",
                "exec team/box allowed ? (exec ID by alice)",
                "http team/box allowed PUT team/box:8080/v1/files/a/*** (by alice) 200",
                "file team/box allowed update a/*** (by alice)",
                "http team/box denied GET team/box:80/ (by unknown) 401 (unauthenticated)",
                "http team/box denied GET team/box:80/ (by unknown) 401 (unauthenticated) 99 times",
            ]
        );
    }
}
