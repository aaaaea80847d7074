//! Hostile tests of the bodies and deadlines of a call.

use hyper::HeaderMap;
use hyper::header::HeaderValue;

use super::call::{decode, time_limit};
use super::framing::Deframer;
use super::messages::{
    ConnectRequest, ExecuteRequest, ResizeTtyRequest, SendSignalRequest, StartRequest, WaitRequest,
    WriteStdinRequest,
};
use super::protocol::Codec;

/// Decodes frames, binary and as text, and their content as every message; also the bytes themselves.
pub(crate) fn bodies(bytes: &[u8]) {
    messages(bytes);
    for text in [false, true] {
        let mut deframer = Deframer::new(text);
        if deframer.push(bytes).is_err() {
            continue;
        }
        while let Ok(Some(message)) = deframer.next() {
            messages(&message);
        }
    }
    for name in ["grpc-timeout", "connect-timeout-ms"] {
        if let Ok(value) = HeaderValue::from_bytes(bytes) {
            let _ = time_limit(&HeaderMap::from_iter([(name.parse().expect("a name"), value)]));
        }
    }
}

fn messages(bytes: &[u8]) {
    for codec in [Codec::Proto, Codec::Json] {
        let _ = decode::<StartRequest>(codec, bytes);
        let _ = decode::<ExecuteRequest>(codec, bytes);
        let _ = decode::<WriteStdinRequest>(codec, bytes);
        let _ = decode::<SendSignalRequest>(codec, bytes);
        let _ = decode::<ResizeTtyRequest>(codec, bytes);
        let _ = decode::<ConnectRequest>(codec, bytes);
        let _ = decode::<WaitRequest>(codec, bytes);
    }
}
