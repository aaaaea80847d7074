//! Streams into Pods whose output is scanned, as policies say.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::{
    ByteReader, Duplex, ExecRequest, Exit, Hold, Kubelet, LogRequest, PodId, Session, StreamError,
};
use hutch_policy::Door;
use hutch_screen::{Found, Origin, Output, Reader, Screen};
use tokio::sync::mpsc;

use super::Screens;

/// Time for which bytes wait for more: of a terminal less than its user notices.
const TERMINAL: Duration = Duration::from_millis(25);
const PIPE: Duration = Duration::from_millis(100);
/// Maximum time after the end of a process for the end of its output, which a process in the background may keep open.
const OUTPUT: Duration = Duration::from_millis(200);

/// A node whose output is scanned here.
pub(in crate::up) struct ScreenedKubelet {
    node: Arc<dyn Kubelet>,
    screens: Arc<Screens>,
}

impl ScreenedKubelet {
    pub(in crate::up) fn new(node: Arc<dyn Kubelet>, screens: Arc<Screens>) -> ScreenedKubelet {
        ScreenedKubelet { node, screens }
    }

    /// Opens a session whose output is scanned where the policies of the Pod say so, which are known before it is opened.
    async fn open<'a>(
        &self,
        pod: &PodId,
        request: ExecRequest,
        open: impl FnOnce(ExecRequest) -> BoxFuture<'a, Result<Session, StreamError>>,
    ) -> Result<Session, StreamError> {
        let screen = self.screens.of(pod, Door::Exec).await;
        let screen = screen.map_err(|error| StreamError::Unavailable(error.to_string()))?;
        let container = request.container.clone();
        let session = open(request).await?;
        Ok(match screen {
            Some(screen) => screened(session, &screen, pod, container.as_deref()),
            None => session,
        })
    }
}

/// Returns a session whose output is scanned.
fn screened(session: Session, screen: &Screen, pod: &PodId, container: Option<&str>) -> Session {
    let origin = Origin {
        pod: format!("{}/{}", pod.namespace, pod.name).into(),
        part: container.unwrap_or_default().into(),
    };
    let (refused, mut refusals) = mpsc::channel(1);
    let hold = if session.resize.is_some() { TERMINAL } else { PIPE };
    let scanned = |stream: ByteReader| {
        let output = Output::new(screen.clone(), origin.clone());
        Box::pin(Reader::new(stream, output, hold, refused.clone())) as ByteReader
    };
    let (stdout, stderr) = (session.stdout.map(&scanned), session.stderr.map(&scanned));
    let ended = session.exit;
    let exit = async move {
        let refusal = |found: Box<Found>| Exit::Failed(format!("the output is refused: {found}"));
        let exit = tokio::select! {
            biased;
            Some(found) = refusals.recv() => return refusal(found),
            exit = ended => exit,
        };
        // It ends when both streams have ended.
        match tokio::time::timeout(OUTPUT, refusals.recv()).await {
            Ok(Some(found)) => refusal(found),
            _ => exit,
        }
    };
    Session { stdout, stderr, exit: exit.boxed(), ..session }
}

impl Kubelet for ScreenedKubelet {
    fn exec<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        self.open(pod, request, |request| self.node.exec(pod, request)).boxed()
    }

    fn attach<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        self.open(pod, request, |request| self.node.attach(pod, request)).boxed()
    }

    fn connect<'a>(
        &'a self,
        pod: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        self.node.connect(pod, port)
    }

    fn ended<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, ()> {
        self.node.ended(pod)
    }

    fn logs<'a>(
        &'a self,
        pod: &'a PodId,
        request: LogRequest,
    ) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        self.node.logs(pod, request)
    }

    fn hold<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<Hold, StreamError>> {
        self.node.hold(pod)
    }
}

#[cfg(test)]
mod tests {
    use hutch_policy::{Authority, Level};
    use tokio::io::AsyncReadExt;

    use super::*;

    fn screen(action: &str) -> Screen {
        let scanner = serde_json::from_value(serde_json::json!({"exec": action})).ok();
        let level = Level { scanner, ..Level::new(Authority::Namespace, "p", None) };
        Screen::of(&[level], Door::Exec).expect("the door is scanned")
    }

    /// Returns the output of a process, and its exit.
    async fn output(action: &str, text: &str) -> (String, Exit) {
        let (ended, end) = tokio::sync::oneshot::channel();
        let session = Session {
            stdin: None,
            stdout: Some(Box::pin(std::io::Cursor::new(text.as_bytes().to_vec()))),
            stderr: Some(Box::pin(tokio::io::empty())),
            resize: None,
            exit: async move { end.await.map_or(Exit::Signal(9), Exit::Code) }.boxed(),
        };
        let pod = PodId { namespace: "n".into(), name: "a".into(), uid: "u".into() };
        let Session { stdout, stderr, exit, .. } = screened(session, &screen(action), &pod, Some("main"));
        let mut passed = String::new();
        let mut read = async |stream: Option<ByteReader>| {
            stream.expect("a stream").read_to_string(&mut passed).await.expect("text");
        };
        // The process ends before its output is read.
        ended.send(0).expect("it is awaited");
        let reads = async {
            read(stderr).await;
            read(stdout).await;
        };
        let ((), exit) = tokio::join!(reads, exit);
        (passed, exit)
    }

    #[tokio::test]
    async fn refused_output_shows_in_the_exit() {
        let token = ["gh", "p_", "q8Zk3mXw7Lp2Vt9Rb5Nc6Ha1Jd4Gs0Fy7Ue2"].concat();
        let text = format!("a\n{token}\n");
        assert_eq!(output("Log", &text).await, (text.clone(), Exit::Code(0)));
        let redacted = "a\n[redacted: github-pat]\n".to_owned();
        assert_eq!(output("Redact", &text).await, (redacted, Exit::Code(0)));
        let (passed, exit) = output("Block", &text).await;
        let why = "the output is refused: the scanner finds `github-pat` in the output";
        assert_eq!((passed.as_str(), exit), ("", Exit::Failed(why.to_owned())));
    }
}
