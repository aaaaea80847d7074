//! Streams into Pods as events of the audit log: commands with their arguments and their end.

use std::sync::Arc;
use std::time::SystemTime;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_audit::event::{ApiCall, Decision, Exec, Principal, Sandbox, Verdict};
use hutch_audit::{Event, Record};
use hutch_kubelet::{
    ByteReader, Duplex, ExecRequest, Exit, Hold, Kubelet, LogRequest, PodId, Session, StreamError,
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

    /// Records the start of a command, before it happens.
    async fn starts(&self, uid: &str, request: &ExecRequest) -> Result<(), StreamError> {
        let exec = Exec {
            sandbox: self.sandbox(),
            container: request.container.as_deref(),
            principal: self.principal(),
            uid,
            arguments: &request.command,
            verdict: Verdict::of(Decision::Allowed),
        };
        self.record(Event::exec(SystemTime::now(), &exec).record()).await
    }

    async fn record(&self, record: Record) -> Result<(), StreamError> {
        self.log.record(record).await.map_err(StreamError::Unavailable)
    }

    fn ended(&self, uid: &str, container: Option<&str>, exit: &Exit) {
        let code = match exit {
            Exit::Code(code) => Some(*code),
            Exit::Signal(signal) => Some(128 + signal),
            Exit::Failed(_) => None,
        };
        let (sandbox, principal) = (self.sandbox(), self.principal());
        let exit = hutch_audit::event::Exit { sandbox, container, principal, uid, code };
        self.log.push(Event::exit(SystemTime::now(), &exit).record());
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
            sandbox: Some(self.sandbox()),
            verdict: Verdict::of(Decision::Allowed),
        };
        self.record(Event::api(SystemTime::now(), &call).record()).await
    }
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
            let uid = uuid::Uuid::new_v4().to_string();
            self.about.starts(&uid, &request).await?;
            let container = request.container.clone();
            let mut session = self.kubelet.exec(pod, request).await.inspect_err(|error| {
                self.about.ended(&uid, container.as_deref(), &Exit::Failed(error.to_string()));
            })?;
            let about = self.about.clone();
            let ended = move |exit: &Exit| about.ended(&uid, container.as_deref(), exit);
            session.exit = session.exit.inspect(ended).boxed();
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
            self.kubelet.connect(pod, port).await
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
