//! A node whose streams keep a place among those of their caller.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::{
    ByteReader, Duplex, ExecRequest, Hold, Kubelet, LogRequest, PodId, Session, StreamError,
};
use tokio::io::{AsyncRead, ReadBuf};

use crate::bounds::Place;

/// Each stream that is opened keeps the place until it ends.
pub(super) struct Held {
    pub(super) kubelet: Arc<dyn Kubelet>,
    pub(super) place: Arc<Place>,
}

/// A log that is being read.
struct HeldLog {
    log: ByteReader,
    _place: Arc<Place>,
}

impl AsyncRead for HeldLog {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.log.as_mut().poll_read(context, buffer)
    }
}

impl Held {
    fn with_place(&self, mut session: Session) -> Session {
        let place = self.place.clone();
        session.exit = session.exit.inspect(move |_| drop(place)).boxed();
        session
    }
}

impl Kubelet for Held {
    fn exec<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        self.kubelet.exec(pod, request).map(|opened| opened.map(|session| self.with_place(session))).boxed()
    }

    fn attach<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        self.kubelet.attach(pod, request).map(|opened| opened.map(|session| self.with_place(session))).boxed()
    }

    /// A port-forward holds the node, and so the place, as long as it lasts.
    fn connect<'a>(
        &'a self,
        pod: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        self.kubelet.connect(pod, port)
    }

    fn ended<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, ()> {
        self.kubelet.ended(pod)
    }

    fn logs<'a>(
        &'a self,
        pod: &'a PodId,
        request: LogRequest,
    ) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        let place = self.place.clone();
        let held = |log| Box::pin(HeldLog { log, _place: place }) as ByteReader;
        self.kubelet.logs(pod, request).map(|opened| opened.map(held)).boxed()
    }

    fn hold<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<Hold, StreamError>> {
        self.kubelet.hold(pod)
    }
}
