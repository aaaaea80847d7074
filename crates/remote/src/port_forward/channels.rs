//! Port-forward over WebSocket channels: for port index `n` of the request, channel `2n` is data and `2n + 1`
//! an error text. The first message on each channel is the port, two bytes, little endian.

use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::SplitStream;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::PollSender;

use super::failure;
use crate::channel::{ChannelWriter, Coding, LINGER, QUEUE, send_all};
use crate::{Kubelet, PodId};

/// Channel numbers are one byte, and each port takes two.
const MAX_PORTS: usize = 127;
/// Maximum messages that wait for one port; a message can be 32 MiB, so only one.
const PORT_QUEUE: usize = 1;

/// Forwards until all ports have ended or the client has disconnected.
pub(super) async fn run(
    socket: WebSocket,
    name: &str,
    ports: Vec<u16>,
    kubelet: Arc<dyn Kubelet>,
    pod: PodId,
) {
    let coding = Coding::of(name);
    let (sink, stream) = socket.split();
    let (queue, queued) = mpsc::channel(QUEUE);
    let mut writer = JoinSet::new();
    writer.spawn(send_all(sink, queued));
    let mut inlets = Vec::new();
    let mut forwards = JoinSet::new();
    for (n, port) in (0_u8..).zip(ports.into_iter().take(MAX_PORTS)) {
        let outlet = |channel| ChannelWriter { coding, channel, queue: PollSender::new(queue.clone()) };
        let (data, error) = (outlet(2 * n), outlet(2 * n + 1));
        let (inlet, pending) = mpsc::channel(PORT_QUEUE);
        inlets.push(inlet);
        forwards.spawn(forward(port, data, error, pending, Arc::clone(&kubelet), pod.clone()));
    }
    drop(queue);
    let receive = receive(stream, coding, inlets);
    tokio::pin!(receive);
    tokio::select! {
        () = async { while forwards.join_next().await.is_some() {} } => {}
        // The client has disconnected: the forwards are dropped.
        () = &mut receive => return,
    }
    let _ = tokio::time::timeout(LINGER, async { tokio::join!(writer.join_next(), receive) }).await;
}

async fn receive(mut stream: SplitStream<WebSocket>, coding: Coding, mut inlets: Vec<mpsc::Sender<Bytes>>) {
    while let Some(Ok(message)) = stream.next().await {
        if matches!(message, Message::Close(_)) {
            continue;
        }
        let Some((channel, bytes)) = coding.decode(message) else { continue };
        // Odd channels are written only by the server; messages of a client there are ignored.
        if let Some(inlet) = inlets.get_mut(usize::from(channel / 2)).filter(|_| channel % 2 == 0) {
            // Its forward has ended: the bytes are discarded.
            let _ = inlet.send(bytes).await;
        }
    }
}

async fn forward(
    port: u16,
    mut data: ChannelWriter,
    mut error: ChannelWriter,
    mut pending: mpsc::Receiver<Bytes>,
    kubelet: Arc<dyn Kubelet>,
    pod: PodId,
) {
    let number = port.to_le_bytes();
    let outcome = async {
        data.write_all(&number).await.map_err(|e| e.to_string())?;
        error.write_all(&number).await.map_err(|e| e.to_string())?;
        let connection = kubelet.connect(&pod, port).await.map_err(|e| failure(&pod, port, &e))?;
        let (mut from_pod, mut to_pod) = tokio::io::split(connection);
        let upward = async {
            while let Some(bytes) = pending.recv().await {
                if to_pod.write_all(&bytes).await.is_err() || to_pod.flush().await.is_err() {
                    break;
                }
            }
            // The Pod reads no more, but may still send.
            pending.close();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            copied = tokio::io::copy(&mut from_pod, &mut data) => copied.map(drop).map_err(|e| failure(&pod, port, &e)),
            () = upward => Ok(()),
        }
    };
    let outcome: Result<(), String> = outcome.await;
    if let Err(text) = outcome {
        let _ = error.write_all(text.as_bytes()).await;
    }
}
