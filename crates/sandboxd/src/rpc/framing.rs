//! Frames: one byte of flags, four of length, the message.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::status::{Code, Status};

/// Maximum bytes of one message of a client.
pub const MESSAGE_LIMIT: usize = 4 << 20;

/// Bytes of flags and length.
const HEAD: usize = 5;
/// Flag of a compressed message. None is accepted, and none sent.
const COMPRESSED: u8 = 1;
/// Flag of the last frame of a Connect stream, which contains no message.
const END_OF_STREAM: u8 = 2;

/// Makes the frame of a message.
pub(super) fn frame(flags: u8, message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(HEAD + message.len());
    framed.put_u8(flags);
    // No response is nearly that long; a client would reject it.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

/// Extracts frames from bytes in pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Deframer {
    held: BytesMut,
    /// Incomplete group of four Base64 characters.
    text: Option<Vec<u8>>,
}

impl Deframer {
    pub(super) fn new(text: bool) -> Deframer {
        Deframer { held: BytesMut::new(), text: text.then(Vec::new) }
    }

    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), Status> {
        let Some(text) = &mut self.text else {
            self.held.extend_from_slice(piece);
            return Ok(());
        };
        text.extend_from_slice(piece);
        let whole = text.len() - text.len() % 4;
        for group in text[..whole].chunks(4) {
            // Padding may occur in the middle: parts that were encoded separately are concatenated.
            let end = group.iter().position(|byte| *byte == b'=').unwrap_or(4);
            let engine = if end == 4 { &STANDARD } else { &STANDARD_NO_PAD };
            let padded = group[end..].iter().all(|byte| *byte == b'=');
            let decoded = engine.decode(&group[..end]).ok().filter(|_| padded);
            let decoded =
                decoded.ok_or_else(|| Status::new(Code::InvalidArgument, "the body is not Base64"))?;
            self.held.extend_from_slice(&decoded);
        }
        text.drain(..whole);
        Ok(())
    }

    /// Returns the next message once it is complete.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            match self.frame()? {
                None => return Ok(None),
                Some((flags, message)) if flags != END_OF_STREAM => return Ok(Some(message)),
                // The end of a stream carries no information for a server.
                Some(_) => {}
            }
        }
    }

    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, Status> {
        if self.held.len() < HEAD {
            return Ok(None);
        }
        let flags = self.held[0];
        let length = (&self.held[1..HEAD]).get_u32() as usize;
        if flags & COMPRESSED != 0 {
            let message = "the message is compressed; only identity is understood";
            return Err(Status::new(Code::Unimplemented, message));
        }
        if flags & !END_OF_STREAM != 0 {
            let message = format!("a frame has the unknown flags {flags:#04x}");
            return Err(Status::new(Code::InvalidArgument, message));
        }
        if length > MESSAGE_LIMIT {
            return Err(too_long(length));
        }
        if self.held.len() < HEAD + length {
            self.held.reserve(HEAD + length - self.held.len());
            return Ok(None);
        }
        self.held.advance(HEAD);
        let message = self.held.split_to(length).freeze();
        Ok(Some((flags, message)))
    }

    /// Returns true if the bytes ended at the end of a frame.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.text.as_ref().is_none_or(Vec::is_empty)
    }
}

pub(super) fn too_long(length: usize) -> Status {
    let message = format!("a message of {length} bytes is longer than the {MESSAGE_LIMIT} that are taken");
    Status::new(Code::ResourceExhausted, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(deframer: &mut Deframer, bytes: &[u8], step: usize) -> Result<Vec<Bytes>, Status> {
        let mut messages = Vec::new();
        for piece in bytes.chunks(step) {
            deframer.push(piece)?;
            while let Some(message) = deframer.next()? {
                messages.push(message);
            }
        }
        Ok(messages)
    }

    proptest! {
        #[test]
        fn frames_round_trip_in_pieces_of_any_size(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..6),
            step in 1usize..64,
            text in any::<bool>(),
        ) {
            let mut sent = Vec::new();
            for message in &messages {
                let framed = frame(0, message);
                sent.extend(if text { STANDARD.encode(&framed).into_bytes() } else { framed.to_vec() });
            }
            let mut deframer = Deframer::new(text);
            let got = read(&mut deframer, &sent, step).unwrap();
            prop_assert_eq!(got.iter().map(|m| m.to_vec()).collect::<Vec<_>>(), messages);
            prop_assert!(deframer.is_empty());
        }

        #[test]
        fn any_input_is_messages_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400), text in any::<bool>()) {
            let mut deframer = Deframer::new(text);
            if let Ok(messages) = read(&mut deframer, &bytes, 7) {
                prop_assert!(messages.iter().map(|m| m.len() + HEAD).sum::<usize>() <= bytes.len());
            }
        }
    }

    #[test]
    fn many_end_frames_do_not_exhaust_the_stack() {
        let mut deframer = Deframer::new(false);
        deframer.push(&[END_OF_STREAM, 0, 0, 0, 0].repeat(200_000)).unwrap();
        assert_eq!(deframer.next().unwrap(), None);
        assert!(deframer.is_empty());
    }

    #[test]
    fn long_or_compressed_messages_are_refused_by_their_head() {
        let mut deframer = Deframer::new(false);
        deframer.push(&[0, 0xff, 0xff, 0xff, 0xff]).unwrap();
        assert_eq!(deframer.next().unwrap_err().code, Code::ResourceExhausted);
        let mut deframer = Deframer::new(false);
        deframer.push(&[1, 0, 0, 0, 0]).unwrap();
        assert_eq!(deframer.next().unwrap_err().code, Code::Unimplemented);
        let mut deframer = Deframer::new(false);
        deframer.push(&[0x80, 0, 0, 0, 0]).unwrap();
        assert_eq!(deframer.next().unwrap_err().code, Code::InvalidArgument);
    }
}
