//! Hostile test of the frames of a connection.

use bytes::Bytes;

use super::frame::{Control, HEAD, Head};
use super::headers::{Decoder, Encoder};

/// Parses frames until one is invalid or the bytes end. All header blocks share one compressed stream. Each
/// decoded block is encoded again and must decode to the same fields.
pub(crate) fn frames(mut bytes: &[u8]) {
    let mut decoder = Decoder::new();
    let (mut encoder, mut again) = (Encoder::new(), Decoder::new());
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
        let Ok(head) = Head::parse(*head) else { return };
        let (Head::Data { length, .. } | Head::Control { length, .. }) = head;
        let Some((payload, rest)) = rest.split_at_checked(length) else { return };
        bytes = rest;
        let Head::Control { kind, flags, .. } = head else { continue };
        let Ok(control) = Control::parse(kind, flags, &Bytes::copy_from_slice(payload)) else { return };
        let (Control::SynStream { block, .. } | Control::MoreHeaders { block, .. }) = control else {
            continue;
        };
        let Ok(fields) = decoder.decode(&block) else { return };
        let pairs: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(again.decode(&encoder.encode(&pairs)).ok(), Some(fields));
    }
}
