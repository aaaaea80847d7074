//! Encoding of SPDY/3.1 frames.

use bytes::{BufMut, Bytes, BytesMut};

/// Bytes of every frame's head.
pub(crate) const HEAD: usize = 8;
/// Maximum control frame that is read. Those of Kubernetes clients are headers of two or three short fields.
pub(crate) const MAX_CONTROL: usize = 16 * 1024;
/// Maximum entries of a SETTINGS frame; the protocol has eight settings.
const MAX_SETTINGS: usize = 64;
const VERSION: u16 = 3;
const CONTROL_BIT: u32 = 1 << 31;
const ID_MASK: u32 = CONTROL_BIT - 1;
const FLAG_FIN: u8 = 1;

/// `RST_STREAM` and `GOAWAY` codes that the server sends.
pub(crate) mod code {
    pub(crate) const REFUSED_STREAM: u32 = 3;
    pub(crate) const CANCEL: u32 = 5;
    pub(crate) const FLOW_CONTROL_ERROR: u32 = 7;
    /// In a GOAWAY: the connection ends normally.
    pub(crate) const GOAWAY_OK: u32 = 0;
    /// In a GOAWAY: the peer violated the protocol.
    pub(crate) const GOAWAY_PROTOCOL_ERROR: u32 = 1;
}

/// Protocol violation of a peer; the connection ends.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("control frame of version {0}")]
    Version(u16),
    #[error("control frame of {0} bytes")]
    TooLong(usize),
    #[error("frame of type {kind} with a payload of {length} bytes")]
    Length { kind: u16, length: usize },
    #[error("stream number {0} is not the peer's to choose")]
    StreamId(u32),
    #[error("data for stream {0}, which was never opened")]
    NeverOpened(u32),
    #[error("header block: {0}")]
    Headers(&'static str),
    #[error("flow-control window of the connection overflows")]
    Window,
}

/// First eight bytes of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Data { id: u32, fin: bool, length: usize },
    Control { kind: u16, flags: u8, length: usize },
}

impl Head {
    /// Parses a head; a control frame that is too long or of another version is refused before its payload is
    /// read.
    pub(crate) fn parse(bytes: [u8; HEAD]) -> Result<Self, Fault> {
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let flags = bytes[4];
        let length = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize;
        if word & CONTROL_BIT == 0 {
            return Ok(Self::Data { id: word, fin: flags & FLAG_FIN != 0, length });
        }
        let version = ((word & ID_MASK) >> 16) as u16;
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        if length > MAX_CONTROL {
            return Err(Fault::TooLong(length));
        }
        Ok(Self::Control { kind: (word & 0xffff) as u16, flags, length })
    }
}

/// Control frame of the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Control {
    SynStream {
        id: u32,
        fin: bool,
        block: Bytes,
    },
    /// SYN_REPLY or HEADERS: their content is not used, but the block must pass the decompressor.
    MoreHeaders {
        id: u32,
        fin: bool,
        block: Bytes,
    },
    RstStream {
        id: u32,
    },
    /// New initial window of the peer's streams, if the frame contains one.
    Settings {
        initial_window: Option<u32>,
    },
    Ping {
        id: u32,
    },
    GoAway,
    WindowUpdate {
        id: u32,
        delta: u32,
    },
    /// Unknown type, which the protocol requires to skip.
    Unknown,
}

impl Control {
    pub(crate) fn parse(kind: u16, flags: u8, payload: &Bytes) -> Result<Self, Fault> {
        let wrong = || Fault::Length { kind, length: payload.len() };
        let word = |at: usize| -> Result<u32, Fault> {
            let four = payload.get(at..at + 4).and_then(|four| <[u8; 4]>::try_from(four).ok());
            four.map(u32::from_be_bytes).ok_or_else(wrong)
        };
        let block = |at: usize| if payload.len() < at { Err(wrong()) } else { Ok(payload.slice(at..)) };
        let exactly = |length: usize| if payload.len() == length { Ok(()) } else { Err(wrong()) };
        let fin = flags & FLAG_FIN != 0;
        Ok(match kind {
            1 => Self::SynStream { id: word(0)? & ID_MASK, fin, block: block(10)? },
            2 | 8 => Self::MoreHeaders { id: word(0)? & ID_MASK, fin, block: block(4)? },
            3 => {
                exactly(8)?;
                Self::RstStream { id: word(0)? & ID_MASK }
            }
            4 => Self::Settings { initial_window: initial_window(payload).ok_or_else(wrong)? },
            6 => {
                exactly(4)?;
                Self::Ping { id: word(0)? }
            }
            7 => {
                exactly(8)?;
                Self::GoAway
            }
            9 => {
                exactly(8)?;
                Self::WindowUpdate { id: word(0)? & ID_MASK, delta: word(4)? & ID_MASK }
            }
            _ => Self::Unknown,
        })
    }
}

const SETTING_INITIAL_WINDOW: u32 = 7;

/// Returns the last initial window in a SETTINGS payload; `None` if the payload is malformed.
fn initial_window(payload: &[u8]) -> Option<Option<u32>> {
    let (count, entries) = payload.split_first_chunk::<4>()?;
    let count = u32::from_be_bytes(*count) as usize;
    if count > MAX_SETTINGS || entries.len() != count * 8 {
        return None;
    }
    let (entries, _) = entries.as_chunks::<8>();
    let mut values = entries.iter().rev().filter_map(|entry| {
        let id = u32::from_be_bytes([0, entry[1], entry[2], entry[3]]);
        let value = u32::from_be_bytes([entry[4], entry[5], entry[6], entry[7]]);
        (id == SETTING_INITIAL_WINDOW).then_some(value)
    });
    Some(values.next())
}

fn control(kind: u16, flags: u8, length: usize) -> BytesMut {
    let mut frame = BytesMut::with_capacity(HEAD + length);
    frame.put_u32(CONTROL_BIT | u32::from(VERSION) << 16 | u32::from(kind));
    frame.put_u8(flags);
    // Every control frame made here is a few dozen bytes.
    frame.put_uint(length as u64, 3);
    frame
}

/// Makes the head of a data frame; `length` is below 2^24.
pub(crate) fn data_head(id: u32, fin: bool, length: usize) -> [u8; HEAD] {
    let id = id.to_be_bytes();
    let length = (length as u32).to_be_bytes();
    [id[0], id[1], id[2], id[3], if fin { FLAG_FIN } else { 0 }, length[1], length[2], length[3]]
}

pub(crate) fn syn_reply(id: u32, block: &[u8]) -> BytesMut {
    let mut frame = control(2, 0, 4 + block.len());
    frame.put_u32(id);
    frame.put_slice(block);
    frame
}

pub(crate) fn rst_stream(id: u32, code: u32) -> BytesMut {
    pair(3, id, code)
}

pub(crate) fn goaway(last: u32, code: u32) -> BytesMut {
    pair(7, last, code)
}

pub(crate) fn window_update(id: u32, delta: u32) -> BytesMut {
    pair(9, id, delta)
}

pub(crate) fn ping(id: u32) -> BytesMut {
    let mut frame = control(6, 0, 4);
    frame.put_u32(id);
    frame
}

/// Makes a SETTINGS frame with the server's initial window.
pub(crate) fn settings(initial_window: u32) -> BytesMut {
    let mut frame = control(4, 0, 12);
    frame.put_u32(1);
    frame.put_u32(SETTING_INITIAL_WINDOW);
    frame.put_u32(initial_window);
    frame
}

fn pair(kind: u16, first: u32, second: u32) -> BytesMut {
    let mut frame = control(kind, 0, 8);
    frame.put_u32(first);
    frame.put_u32(second);
    frame
}

/// Makes the frame with which a client opens a stream.
#[cfg(test)]
pub(crate) fn syn_stream(id: u32, fin: bool, block: &[u8]) -> BytesMut {
    let mut frame = control(1, u8::from(fin), 10 + block.len());
    frame.put_u32(id);
    frame.put_u32(0);
    frame.put_u16(0);
    frame.put_slice(block);
    frame
}
