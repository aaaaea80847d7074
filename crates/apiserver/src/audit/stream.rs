//! Streams into Pods as events of the audit log: commands with their arguments and their end.

use std::sync::Arc;
use std::time::SystemTime;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_audit::event::{ApiCall, Decision, Exec, FileAccess, FileActivity, Principal, Sandbox, Verdict};
use hutch_audit::{Event, Record};
use hutch_kubelet::{
    ByteReader, CALLER, Duplex, ExecRequest, Exit, Hold, Kubelet, LogRequest, PodId, Session, StreamError,
};
use serde_json::Value;

use super::{Audit, principal, sandbox_named, sandbox_of_pod};
use crate::Identity;
use crate::call::Call;

/// Returns a node whose streams are recorded, if there is a log and the caller comes from outside.
pub(crate) fn streams(call: &Call, pod: &Value, kubelet: Arc<dyn Kubelet>) -> Arc<dyn Kubelet> {
    let Some(log) = call.core.audit.get().filter(|_| call.external) else { return kubelet };
    let (name, uid) = sandbox_of_pod(pod);
    let identity = call.identity.clone();
    let namespace = call.namespace.clone().unwrap_or_default();
    let about = Arc::new(About { log: log.clone(), identity, namespace, name, uid });
    Arc::new(Recorded { kubelet, about })
}

/// Caller and Sandbox of a stream.
struct About {
    log: Arc<dyn Audit>,
    identity: Identity,
    namespace: String,
    name: String,
    uid: String,
}

impl About {
    fn principal(&self) -> Principal<'_> {
        principal(&self.identity)
    }

    fn sandbox(&self) -> Sandbox<'_> {
        sandbox_named(&self.namespace, &self.name, &self.uid)
    }

    async fn record(&self, record: Record) -> Result<(), StreamError> {
        self.log.record(record).await.map_err(StreamError::Unavailable)
    }

    /// Records a connection to a port.
    async fn connects(&self, port: u16) -> Result<(), StreamError> {
        let operation = format!("connect to port {port} of");
        let call = ApiCall {
            principal: self.principal(),
            impersonator: None,
            verb: &operation,
            group: "",
            resource: "pods/portforward",
            namespace: &self.namespace,
            name: &self.name,
            path: None,
            method: None,
            user_agent: None,
            source: None,
            uid: None,
            status: None,
            count: None,
            sandbox: Some(self.sandbox()),
            claim: None,
            annotations: &[],
            verdict: Verdict::of(Decision::Allowed),
        };
        self.record(Event::api(SystemTime::now(), &call).record()).await
    }
}

/// Command that has started. Its end is recorded once, also if its caller leaves before.
struct Running {
    about: Arc<About>,
    uid: String,
    container: Option<String>,
    arguments: Vec<String>,
    ended: bool,
}

impl Running {
    /// Records the start of a command, before it happens.
    async fn start(about: Arc<About>, request: &ExecRequest) -> Result<Running, StreamError> {
        let mut running = Running {
            uid: uuid::Uuid::new_v4().to_string(),
            container: request.container.clone(),
            arguments: request.command.clone(),
            about: about.clone(),
            ended: true,
        };
        let exec = Exec {
            sandbox: about.sandbox(),
            container: request.container.as_deref(),
            principal: about.principal(),
            uid: &running.uid,
            arguments: &request.command,
            verdict: Verdict::of(Decision::Allowed),
        };
        about.record(Event::exec(SystemTime::now(), &exec).record()).await?;
        running.ended = false;
        Ok(running)
    }

    fn ends(&mut self, exit: &Exit) {
        self.ended = true;
        let code = match exit {
            Exit::Code(code) => Some(*code),
            Exit::Signal(signal) => Some(128 + signal),
            Exit::OutOfMemory => Some(137),
            Exit::Failed(_) => None,
        };
        let end = hutch_audit::event::Exit {
            sandbox: self.about.sandbox(),
            container: self.container.as_deref(),
            principal: self.about.principal(),
            uid: &self.uid,
            arguments: &self.arguments,
            code,
            failure: if let Exit::Failed(why) = exit { Some(why) } else { None },
        };
        let record = Event::exit(SystemTime::now(), &end).record();
        self.about.log.push(Box::new(move || record));
        if let Some((activity, path)) = copy_of(&self.arguments) {
            let success = Some(code == Some(0));
            let access = FileAccess {
                sandbox: self.about.sandbox(),
                principal: self.about.principal(),
                activity,
                path: &path,
                is_folder: activity == FileActivity::Update,
                size: None,
                verdict: Verdict { success, ..Verdict::of(Decision::Allowed) },
            };
            let record = Event::file(SystemTime::now(), &access).record();
            self.about.log.push(Box::new(move || record));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.ends(&Exit::Failed("its caller has left, so it was ended".to_owned()));
        }
    }
}

/// Returns activity and path of a command by which clients copy files: a `tar` that writes or reads an archive of a stream.
fn copy_of(arguments: &[String]) -> Option<(FileActivity, String)> {
    let (program, rest) = arguments.split_first()?;
    if program.rsplit('/').next() != Some("tar") {
        return None;
    }
    let (mut activity, mut folder, mut paths, mut words) = (None, None, Vec::new(), rest.iter());
    let mut is_first = true;
    while let Some(word) = words.next() {
        let is_option = word.starts_with('-') || is_first;
        is_first = false;
        match word.as_str() {
            "-" | "--" => {}
            "-C" => folder = words.next().map(String::as_str),
            // The value of `f` is the stream.
            _ if is_option => {
                activity = match word.trim_start_matches('-').chars().find(|option| "xc".contains(*option)) {
                    Some('x') => Some(FileActivity::Update),
                    Some(_) => Some(FileActivity::Read),
                    None => activity,
                };
            }
            path => paths.push(path),
        }
    }
    let activity = activity.filter(|_| arguments.iter().any(|word| word == "-"))?;
    let path = match (folder, paths.first().map(|path| path.trim_start_matches("./"))) {
        (Some(folder), Some(path)) => format!("{}/{path}", folder.trim_end_matches('/')),
        (Some(folder), None) => folder.to_owned(),
        (None, path) => path.unwrap_or(".").to_owned(),
    };
    Some((activity, path))
}

/// A node whose streams are recorded.
struct Recorded {
    kubelet: Arc<dyn Kubelet>,
    about: Arc<About>,
}

impl Kubelet for Recorded {
    fn exec<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        async move {
            let mut running = Running::start(self.about.clone(), &request).await?;
            let mut session = match self.kubelet.exec(pod, request).await {
                Ok(session) => session,
                Err(error) => {
                    running.ends(&Exit::Failed(error.to_string()));
                    return Err(error);
                }
            };
            session.exit = session.exit.inspect(move |exit| running.ends(exit)).boxed();
            Ok(session)
        }
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        // The request is recorded. It starts no command.
        self.kubelet.attach(pod, request)
    }

    fn connect<'a>(
        &'a self,
        pod: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        async move {
            self.about.connects(port).await?;
            CALLER.scope(self.about.identity.name.as_str().into(), self.kubelet.connect(pod, port)).await
        }
        .boxed()
    }

    fn ended<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, ()> {
        self.kubelet.ended(pod)
    }

    fn logs<'a>(
        &'a self,
        pod: &'a PodId,
        request: LogRequest,
    ) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        self.kubelet.logs(pod, request)
    }

    fn hold<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<Hold, StreamError>> {
        self.kubelet.hold(pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_by_tar_are_accesses_to_files() {
        let of = |command: &str| {
            let arguments: Vec<String> = command.split(' ').map(str::to_owned).collect();
            copy_of(&arguments)
        };
        let (read, update) = (FileActivity::Read, FileActivity::Update);
        assert_eq!(of("tar -x -m -o -f - -C /data"), Some((update, "/data".into())));
        assert_eq!(of("tar -c -f - -C /data ./a.txt"), Some((read, "/data/a.txt".into())));
        assert_eq!(of("tar -xmf - -C /data"), Some((update, "/data".into())));
        assert_eq!(of("tar cf - /data/a"), Some((read, "/data/a".into())));
        assert_eq!(of("tar -xf a.tar"), None);
        assert_eq!(of("sh -c x"), None);
    }
}
