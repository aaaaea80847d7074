//! Tests [`Connection`] with a client of raw frames: order, windows, limits, and peers that violate the
//! protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::Connection;
use super::frame::{self, Control, HEAD, Head, code};
use super::headers::Encoder;
use super::link::{CONNECTION_BUFFER, MAX_STREAMS};

/// The wire buffers little, so that only the buffers under test can hold much.
const WIRE: usize = 4096;

struct Peer {
    wire: DuplexStream,
    encoder: Encoder,
}

#[derive(Debug, PartialEq, Eq)]
enum Got {
    Data { id: u32, fin: bool, bytes: Bytes },
    Control { kind: u16, payload: Bytes },
}

impl Peer {
    fn new() -> (Self, Connection) {
        let (ours, theirs) = tokio::io::duplex(WIRE);
        (Self { wire: ours, encoder: Encoder::new() }, Connection::open(theirs))
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.wire.write_all(bytes).await.unwrap();
    }

    async fn open(&mut self, id: u32) {
        let block = self.encoder.encode(&[("streamtype", "data"), ("port", "80")]);
        let syn = frame::syn_stream(id, false, &block);
        self.send(&syn).await;
    }

    async fn data(&mut self, id: u32, fin: bool, bytes: &[u8]) {
        self.send(&frame::data_head(id, fin, bytes.len())).await;
        self.send(bytes).await;
    }

    /// Returns the next frame that is not about the client's windows.
    async fn next(&mut self) -> Option<Got> {
        loop {
            let got = self.any().await?;
            if !matches!(got, Got::Control { kind: 4 | 9, .. }) {
                return Some(got);
            }
        }
    }

    async fn any(&mut self) -> Option<Got> {
        let mut head = [0; HEAD];
        self.wire.read_exact(&mut head).await.ok()?;
        let (length, id, fin, kind) = match Head::parse(head).unwrap() {
            Head::Data { id, fin, length } => (length, id, fin, None),
            Head::Control { kind, length, .. } => (length, 0, false, Some(kind)),
        };
        let mut payload = BytesMut::zeroed(length);
        self.wire.read_exact(&mut payload).await.ok()?;
        let bytes = payload.freeze();
        Some(match kind {
            Some(kind) => Got::Control { kind, payload: bytes },
            None => Got::Data { id, fin, bytes },
        })
    }

    /// Reads until the connection ends; the last frame must be this GOAWAY.
    async fn assert_ends_with(&mut self, code: u32) {
        let mut last = None;
        let all = async {
            while let Some(got) = self.next().await {
                last = Some(got);
            }
        };
        tokio::time::timeout(Duration::from_secs(5), all).await.expect("the connection ends");
        match last {
            Some(Got::Control { kind: 7, payload }) => assert_eq!(payload[4..], code.to_be_bytes()),
            other => panic!("{other:?} instead of a GOAWAY"),
        }
    }
}

fn data(id: u32, fin: bool, bytes: &[u8]) -> Option<Got> {
    Some(Got::Data { id, fin, bytes: Bytes::copy_from_slice(bytes) })
}

fn reset(id: u32, code: u32) -> Option<Got> {
    let payload = frame::rst_stream(id, code).freeze().slice(HEAD..);
    Some(Got::Control { kind: 3, payload })
}

#[tokio::test]
async fn a_stream_carries_bytes_both_ways_and_ends_each_way_alone() {
    let (mut peer, mut connection) = Peer::new();
    peer.open(1).await;
    let stream = connection.accept().await.unwrap();
    assert_eq!((stream.id(), stream.header("streamtype"), stream.header("other")), (1, Some("data"), None));
    let (mut reader, mut writer) = stream.accept().await;
    assert!(matches!(peer.next().await, Some(Got::Control { kind: 2, .. })));
    peer.data(1, false, b"to ").await;
    peer.data(1, true, b"you").await;
    let mut text = String::new();
    reader.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "to you");
    writer.write_all(b"and back").await.unwrap();
    writer.shutdown().await.unwrap();
    assert_eq!(peer.next().await, data(1, false, b"and back"));
    assert_eq!(peer.next().await, data(1, true, b""));
    drop((reader, writer));
    connection.close().await;
    peer.assert_ends_with(code::GOAWAY_OK).await;
}

#[tokio::test]
async fn a_dropped_writer_resets_its_stream_after_its_data() {
    let (mut peer, mut connection) = Peer::new();
    peer.open(1).await;
    let (_reader, mut writer) = connection.accept().await.unwrap().accept().await;
    writer.write_all(b"half").await.unwrap();
    drop(writer);
    assert!(matches!(peer.next().await, Some(Got::Control { kind: 2, .. })));
    assert_eq!(peer.next().await, data(1, false, b"half"));
    assert_eq!(peer.next().await, reset(1, code::CANCEL));
}

#[tokio::test]
async fn a_reset_is_an_error_for_both_halves() {
    let (mut peer, mut connection) = Peer::new();
    peer.open(1).await;
    let (mut reader, mut writer) = connection.accept().await.unwrap().accept().await;
    peer.send(&frame::rst_stream(1, code::CANCEL)).await;
    assert!(reader.read_u8().await.is_err());
    assert!(writer.write_all(b"x").await.is_err());
}

#[tokio::test]
async fn peer_windows_are_respected() {
    let (mut peer, mut connection) = Peer::new();
    peer.send(&frame::settings(10)).await;
    peer.open(1).await;
    let (_reader, mut writer) = connection.accept().await.unwrap().accept().await;
    let sent = tokio::spawn(async move {
        writer.write_all(&[7; 25]).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    assert!(matches!(peer.next().await, Some(Got::Control { kind: 2, .. })));
    assert_eq!(peer.next().await, data(1, false, &[7; 10]));
    let quiet = tokio::time::timeout(Duration::from_millis(50), peer.next()).await;
    assert!(quiet.is_err(), "{quiet:?} beyond the window");
    peer.send(&frame::window_update(1, 100)).await;
    assert_eq!(peer.next().await, data(1, false, &[7; 15]));
    assert_eq!(peer.next().await, data(1, true, b""));
    sent.await.unwrap();
}

#[tokio::test]
async fn window_overflow_resets_stream_or_connection() {
    let (mut peer, mut connection) = Peer::new();
    peer.open(1).await;
    let (_reader, _writer) = connection.accept().await.unwrap().accept().await;
    assert!(matches!(peer.next().await, Some(Got::Control { kind: 2, .. })));
    peer.send(&frame::window_update(1, u32::MAX >> 1)).await;
    assert_eq!(peer.next().await, reset(1, code::FLOW_CONTROL_ERROR));
    peer.send(&frame::window_update(0, u32::MAX >> 1)).await;
    peer.assert_ends_with(code::GOAWAY_PROTOCOL_ERROR).await;
}

#[tokio::test]
async fn consumed_bytes_are_credited() {
    let (mut peer, mut connection) = Peer::new();
    peer.open(1).await;
    let (mut reader, _writer) = connection.accept().await.unwrap().accept().await;
    tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
    let (mut read, mut write) = tokio::io::split(peer.wire);
    tokio::spawn(async move {
        for _ in 0..300 {
            write.write_all(&frame::data_head(1, false, 1000)).await.unwrap();
            write.write_all(&[1; 1000]).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
    let mut credits = [0, 0];
    let mut first = true;
    while credits != [262_144, 262_144] {
        let mut head = [0; HEAD];
        read.read_exact(&mut head).await.unwrap();
        let Head::Control { kind, flags, length } = Head::parse(head).unwrap() else {
            panic!("no data was sent")
        };
        let mut payload = BytesMut::zeroed(length);
        read.read_exact(&mut payload).await.unwrap();
        if let Control::WindowUpdate { id, delta } = Control::parse(kind, flags, &payload.freeze()).unwrap() {
            // The first opens the connection's window.
            credits[id as usize] += if std::mem::take(&mut first) { 0 } else { delta.min(65_536) };
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_ignores_windows_is_slowed_by_a_bounded_buffer() {
    let (mut peer, mut connection) = Peer::new();
    let mut streams = Vec::new();
    for id in 0..40 {
        peer.open(1 + 2 * id).await;
        streams.push(connection.accept().await.unwrap().accept().await);
    }
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let flood = tokio::spawn(async move {
        loop {
            for id in 0..40 {
                peer.data(1 + 2 * id, false, &[0; 1000]).await;
                count.fetch_add(1000, Ordering::Relaxed);
            }
        }
    });
    let mut before = usize::MAX;
    while before != taken.load(Ordering::Relaxed) {
        before = taken.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(before <= CONNECTION_BUFFER + 64 * 1024, "{before} bytes taken");
    assert!(before >= CONNECTION_BUFFER / 2, "{before} bytes taken");
    // Resetting a stream frees room, and its later bytes are discarded.
    drop(streams.pop());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = taken.load(Ordering::Relaxed);
    assert!(after > before && after <= before + 256 * 1024, "{before} and then {after} bytes taken");
    flood.abort();
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let (mut peer, mut connection) = Peer::new();
    let mut held = Vec::new();
    for n in 0..MAX_STREAMS as u32 {
        peer.open(1 + 2 * n).await;
        held.push(connection.accept().await.unwrap());
    }
    let next = 1 + 2 * MAX_STREAMS as u32;
    peer.open(next).await;
    assert_eq!(peer.next().await, reset(next, code::REFUSED_STREAM));
    held.pop();
    assert_eq!(peer.next().await, reset(next - 2, code::CANCEL));
    peer.open(next + 2).await;
    assert_eq!(connection.accept().await.unwrap().id(), next + 2);
}

#[tokio::test]
async fn pings_of_the_peer_are_answered() {
    let (mut peer, _connection) = Peer::new();
    peer.send(&frame::ping(7)).await;
    let payload = Bytes::copy_from_slice(&7_u32.to_be_bytes());
    assert_eq!(peer.next().await, Some(Got::Control { kind: 6, payload }));
}

#[tokio::test]
async fn protocol_violations_end_the_connection_with_goaway() {
    let block = Encoder::new().encode(&[]);
    let mut twice = frame::syn_stream(3, false, &block).to_vec();
    twice.extend_from_slice(&frame::syn_stream(1, false, &[]));
    let cases: &[(&str, Vec<u8>)] = &[
        ("an even number", frame::syn_stream(2, false, &block).to_vec()),
        ("stream 0", frame::syn_stream(0, false, &block).to_vec()),
        ("numbers that fall", twice),
        ("no header block", frame::syn_stream(1, false, b"no zlib").to_vec()),
        ("data without a stream", frame::data_head(5, false, 3).to_vec()),
        ("data on stream 0", frame::data_head(0, false, 3).to_vec()),
        ("version 2", vec![0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1]),
        ("a long control frame", vec![0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]),
        ("a short SYN_STREAM", vec![0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1]),
        ("a short RST_STREAM", vec![0x80, 3, 0, 3, 0, 0, 0, 4, 0, 0, 0, 1]),
        ("a long PING", vec![0x80, 3, 0, 6, 0, 0, 0, 5, 0, 0, 0, 1, 0]),
        ("SETTINGS that lie", vec![0x80, 3, 0, 4, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]),
        ("a window too wide", frame::settings(u32::MAX).to_vec()),
    ];
    for (what, bytes) in cases {
        let (mut peer, _connection) = Peer::new();
        peer.send(bytes).await;
        println!("{what}");
        peer.assert_ends_with(code::GOAWAY_PROTOCOL_ERROR).await;
    }
}

#[tokio::test]
async fn unknown_frames_are_skipped() {
    let (mut peer, _connection) = Peer::new();
    peer.send(&[0x80, 3, 0, 77, 0, 0, 0, 2, 1, 2]).await;
    peer.send(&frame::ping(1)).await;
    assert!(matches!(peer.next().await, Some(Got::Control { kind: 6, .. })));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]
    /// Frames with plausible heads and any payload: the connection continues or ends, and never panics or
    /// blocks the reader of a stream after the peer has disconnected.
    #[test]
    fn any_frames_are_handled(frames in proptest::collection::vec(
        (0_u32..12, 0_u8..2, 0_u32..8, proptest::collection::vec(0_u8.., 0..40)), 0..20,
    )) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (mut peer, mut connection) = Peer::new();
            peer.open(1).await;
            let (mut reader, writer) = connection.accept().await.unwrap().accept().await;
            let (mut read, mut write) = tokio::io::split(peer.wire);
            let drain = tokio::spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
            for (kind, flags, id, payload) in frames {
                let word = if kind == 0 { id } else { 0x8003_0000 | kind };
                let mut bytes = word.to_be_bytes().to_vec();
                bytes.push(flags);
                bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
                bytes.extend_from_slice(&payload);
                if write.write_all(&bytes).await.is_err() {
                    break;
                }
            }
            write.shutdown().await.ok();
            drop(write);
            let mut sink = Vec::new();
            let read = reader.read_to_end(&mut sink);
            let ended = tokio::time::timeout(Duration::from_secs(5), read).await;
            assert!(ended.is_ok(), "the reader hangs");
            drop(writer);
            drop(connection);
            drain.abort();
        });
    }
}
