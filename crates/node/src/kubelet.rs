//! The node's side of the contract for streams to Pods.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_api::annotation;
use hutch_image::PathSegment;
use hutch_kubelet::{
    Activity, ByteReader, ConnectedSocket, Duplex, ExecRequest, Exit, Handover, Hold, Kubelet, LogRequest,
    PipedSession, PodId, Session, StreamError,
};
use jiff::Timestamp;

use crate::container::{Running, read_log};
use crate::dial::enter;
use crate::live::{Live, Update};
use crate::node::Node;
use crate::out_of_memory;
use crate::places::log_file;
use crate::session;
use crate::sleep::{Busy, Counted};

impl Node {
    fn live(&self, pod: &PodId) -> Result<Arc<Live>, StreamError> {
        let live = self.shared.find(&pod.uid);
        live.ok_or_else(|| StreamError::NotFound(format!("pod {:?} does not run on this node", pod.name)))
    }

    /// The container's name, and the container when it runs.
    fn container(live: &Live, named: Option<&str>) -> Result<(String, Option<Arc<Running>>), StreamError> {
        let pod = live.pod();
        let spec = pod.spec.as_ref();
        let annotations = pod.metadata.annotations.as_ref();
        let annotated = annotations.and_then(|noted| noted.get(annotation::DEFAULT_CONTAINER)).cloned();
        let first = || spec.and_then(|s| s.containers.first()).map(|c| c.name.clone());
        let name = named.map(str::to_owned).or(annotated).or_else(first).unwrap_or_default();
        let known = spec.is_some_and(|s| {
            let ephemeral = s.ephemeral_containers.iter().flatten().map(|c| &c.name);
            let of_spec = s.containers.iter().chain(s.init_containers.iter().flatten()).map(|c| &c.name);
            of_spec.chain(ephemeral).any(|known| *known == name)
        });
        match known {
            true => Ok((name.clone(), live.container(&name))),
            false => Err(StreamError::BadRequest(format!(
                "container {name} is not valid for pod {}",
                live.id.name
            ))),
        }
    }

    fn running(&self, pod: &PodId, named: Option<&str>) -> Result<Arc<Running>, StreamError> {
        let live = self.live(pod)?;
        if live.service.get().is_some() {
            return Err(StreamError::BadRequest(format!(
                "pod {} holds no process: hutch itself answers for it",
                live.id.name
            )));
        }
        let (name, running) = Self::container(&live, named)?;
        running.ok_or_else(|| {
            StreamError::Unavailable(format!("container {name} of pod {} is not running", live.id.name))
        })
    }

    async fn open(&self, pod: &PodId, port: u16) -> Result<Box<dyn Duplex>, StreamError> {
        let live = self.live(pod)?;
        if let Some(kind) = live.service.get() {
            let service = self.shared.config.services.get(kind);
            let service =
                service.ok_or_else(|| StreamError::Unavailable("the service does not run here".into()))?;
            return service.connect(port).await;
        }
        let stream = enter(&live, port).await?;
        Ok(Box::new(Counted::new(stream, live)))
    }

    async fn read(&self, pod: &PodId, request: LogRequest) -> Result<ByteReader, StreamError> {
        let live = self.live(pod)?;
        let (name, running) = Self::container(&live, request.container.as_deref())?;
        let missing = |what: &str| {
            StreamError::BadRequest(format!("{what} container {name:?} in pod {:?} not found", live.id.name))
        };
        let life = live.life(&name);
        let life = match (life, request.previous) {
            (Some(life), false) => life,
            (Some(life), true) => life.checked_sub(1).ok_or_else(|| missing("previous terminated"))?,
            (None, _) if live.service.get().is_some() => return Ok(Box::pin(tokio::io::empty())),
            (None, _) => {
                let text = format!("container {name:?} in pod {:?} is waiting to start", live.id.name);
                return Err(StreamError::BadRequest(text));
            }
        };
        let segment = PathSegment::label(&name).ok_or_else(|| missing("a usable name of"))?;
        let path = log_file(&self.shared.places.pod(&live.uid).logs(&segment), life);
        let output =
            running.filter(|_| request.follow && !request.previous).map(|running| running.output.clone());
        let follow = output.filter(|output| output.path() == path).and_then(|output| output.follow());
        read_log(path, &request, follow, Timestamp::now()).await.map_err(|error| {
            tracing::warn!(%error, "a log could not be read");
            StreamError::Internal("the log could not be read".into())
        })
    }
}

/// Keeps a Pod awake until a process in it has ended, or its client is gone.
fn held(exit: BoxFuture<'static, Exit>, busy: Busy) -> BoxFuture<'static, Exit> {
    async move {
        let exit = exit.await;
        drop(busy);
        exit
    }
    .boxed()
}

impl Kubelet for Node {
    fn exec<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        async move {
            self.running(pod, request.container.as_deref())?;
            let busy = self.live(pod)?.enter().await?;
            // What ran before it was awake may have ended.
            let running = self.running(pod, request.container.as_deref())?;
            let before = out_of_memory::kills(&running).await;
            let session = session::exec(running.clone(), request).await?;
            let exit = out_of_memory::noted(session.exit, &self.shared, self.live(pod)?, running, before);
            Ok(Session { exit: held(exit, busy), ..session })
        }
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        async move {
            self.running(pod, request.container.as_deref())?;
            let busy = self.live(pod)?.enter().await?;
            let running = self.running(pod, request.container.as_deref())?;
            let session = session::attach(running, request).await?;
            Ok(Session { exit: held(session.exit, busy), ..session })
        }
        .boxed()
    }

    fn connect<'a>(
        &'a self,
        pod: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        self.open(pod, port).boxed()
    }

    fn ended<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, ()> {
        // Of what is known of the Pod only the news of it: who waits here must not keep the rest.
        let updates = self.live(pod).ok().map(|live| live.updates.subscribe());
        async move {
            // One that is not known may only be starting: connections into it say so.
            let Some(mut updates) = updates else { return std::future::pending().await };
            // The channel also ends when no sender is left.
            let _ = updates.wait_for(|update| matches!(update, Update::Gone)).await;
        }
        .boxed()
    }

    fn logs<'a>(
        &'a self,
        pod: &'a PodId,
        request: LogRequest,
    ) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        self.read(pod, request).boxed()
    }

    fn hold<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<Hold, StreamError>> {
        async move {
            let live = self.live(pod)?;
            let busy = if live.service.get().is_some() { None } else { Some(live.enter().await?) };
            Ok(Box::new(busy) as Hold)
        }
        .boxed()
    }
}

impl Handover for Node {
    fn exec_pipes<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<PipedSession, StreamError>> {
        async move {
            self.running(pod, request.container.as_deref())?;
            let busy = self.live(pod)?.enter().await?;
            let running = self.running(pod, request.container.as_deref())?;
            let before = out_of_memory::kills(&running).await;
            let session = session::exec_pipes(running.clone(), request).await?;
            let exit = out_of_memory::noted(session.exit, &self.shared, self.live(pod)?, running, before);
            Ok(PipedSession { exit: held(exit, busy), ..session })
        }
        .boxed()
    }

    fn connect_socket<'a>(
        &'a self,
        pod: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<ConnectedSocket, StreamError>> {
        async move {
            let live = self.live(pod)?;
            if let Some(kind) = live.service.get() {
                return Ok(ConnectedSocket::Service(kind.name().to_owned()));
            }
            let stream = enter(&live, port).await?;
            let socket = stream.into_std().map_err(|error| StreamError::Unavailable(error.to_string()))?;
            let activity: Activity = Box::new(move || {
                let live = live.clone();
                // To enter and to leave counts as activity, and wakes the Pod first.
                async move { live.enter().await.map(drop) }.boxed()
            });
            Ok(ConnectedSocket::Socket(socket.into(), activity))
        }
        .boxed()
    }
}
