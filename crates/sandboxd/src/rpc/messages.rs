//! Messages of `proto/process/v1/process.proto` in both encodings: fields by number, and JSON.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};
use serde::{Deserialize, Serialize};

use super::number;

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Pty {
    #[prost(uint32, tag = "1")]
    #[serde(deserialize_with = "number::lenient")]
    pub(super) cols: u32,
    #[prost(uint32, tag = "2")]
    #[serde(deserialize_with = "number::lenient")]
    pub(super) rows: u32,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProcessConfig {
    #[prost(string, repeated, tag = "1")]
    pub(super) command: Vec<String>,
    #[prost(btree_map = "string, string", tag = "2")]
    #[serde(alias = "env_vars")]
    pub(super) env_vars: BTreeMap<String, String>,
    #[prost(string, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StartRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<ProcessConfig>,
    #[prost(message, optional, tag = "2")]
    pub(super) pty: Option<Pty>,
    #[prost(bool, tag = "3")]
    pub(super) detach: bool,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct InitEvent {
    #[prost(int32, tag = "1")]
    pub(super) process_id: i32,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ExitEvent {
    #[prost(int32, tag = "1")]
    pub(super) exit_code: i32,
    #[prost(int32, tag = "2")]
    pub(super) signal: i32,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct DroppedEvent {
    #[prost(uint64, tag = "1")]
    #[serde(serialize_with = "number::as_text", deserialize_with = "number::lenient")]
    pub(super) bytes: u64,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
pub(super) struct StartResponse {
    #[prost(oneof = "ProcessEvent", tags = "1, 2, 3, 4, 5")]
    #[serde(flatten)]
    pub(super) event: Option<ProcessEvent>,
}

#[derive(Clone, PartialEq, Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ProcessEvent {
    #[prost(message, tag = "1")]
    Init(InitEvent),
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(with = "number::base64")]
    Stdout(bytes::Bytes),
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(with = "number::base64")]
    Stderr(bytes::Bytes),
    #[prost(message, tag = "4")]
    Exit(ExitEvent),
    #[prost(message, tag = "5")]
    Dropped(DroppedEvent),
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ExecuteRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<ProcessConfig>,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ExecuteResponse {
    #[prost(int32, tag = "1")]
    pub(super) exit_code: i32,
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(with = "number::base64")]
    pub(super) stdout: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(with = "number::base64")]
    pub(super) stderr: bytes::Bytes,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WriteStdinRequest {
    #[prost(int32, tag = "1")]
    #[serde(alias = "process_id", deserialize_with = "number::lenient")]
    pub(super) process_id: i32,
    #[prost(oneof = "Payload", tags = "2, 3")]
    #[serde(flatten)]
    pub(super) payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Payload {
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(with = "number::base64")]
    Input(bytes::Bytes),
    #[prost(message, tag = "3")]
    Eof(Empty),
}

/// Message without fields.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SendSignalRequest {
    #[prost(int32, tag = "1")]
    #[serde(alias = "process_id", deserialize_with = "number::lenient")]
    pub(super) process_id: i32,
    #[prost(enumeration = "Signal", tag = "2")]
    #[serde(with = "number::signal")]
    pub(super) signal: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum Signal {
    Unspecified = 0,
    Sighup = 1,
    Sigint = 2,
    Sigquit = 3,
    Sigkill = 9,
    Sigusr1 = 10,
    Sigusr2 = 12,
    Sigterm = 15,
    Sigcont = 18,
    Sigstop = 19,
}

/// All signals with their names in the contract.
pub(super) const SIGNALS: [(&str, Signal); 10] = [
    ("SIGNAL_UNSPECIFIED", Signal::Unspecified),
    ("SIGNAL_SIGHUP", Signal::Sighup),
    ("SIGNAL_SIGINT", Signal::Sigint),
    ("SIGNAL_SIGQUIT", Signal::Sigquit),
    ("SIGNAL_SIGKILL", Signal::Sigkill),
    ("SIGNAL_SIGUSR1", Signal::Sigusr1),
    ("SIGNAL_SIGUSR2", Signal::Sigusr2),
    ("SIGNAL_SIGTERM", Signal::Sigterm),
    ("SIGNAL_SIGCONT", Signal::Sigcont),
    ("SIGNAL_SIGSTOP", Signal::Sigstop),
];

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ResizeTtyRequest {
    #[prost(int32, tag = "1")]
    #[serde(alias = "process_id", deserialize_with = "number::lenient")]
    pub(super) process_id: i32,
    #[prost(uint32, tag = "2")]
    #[serde(deserialize_with = "number::lenient")]
    pub(super) cols: u32,
    #[prost(uint32, tag = "3")]
    #[serde(deserialize_with = "number::lenient")]
    pub(super) rows: u32,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) processes: Vec<ProcessInfo>,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProcessInfo {
    #[prost(int32, tag = "1")]
    pub(super) process_id: i32,
    #[prost(string, repeated, tag = "2")]
    pub(super) command: Vec<String>,
    #[prost(bool, tag = "3")]
    pub(super) detached: bool,
    #[prost(bool, tag = "4")]
    pub(super) pty: bool,
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit: Option<ExitEvent>,
    #[prost(uint64, tag = "6")]
    #[serde(serialize_with = "number::as_text", deserialize_with = "number::lenient")]
    pub(super) output_start: u64,
    #[prost(uint64, tag = "7")]
    #[serde(serialize_with = "number::as_text", deserialize_with = "number::lenient")]
    pub(super) output_end: u64,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ConnectRequest {
    #[prost(int32, tag = "1")]
    #[serde(alias = "process_id", deserialize_with = "number::lenient")]
    pub(super) process_id: i32,
    #[prost(uint64, tag = "2")]
    #[serde(serialize_with = "number::as_text", deserialize_with = "number::lenient")]
    pub(super) offset: u64,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WaitRequest {
    #[prost(int32, tag = "1")]
    #[serde(alias = "process_id", deserialize_with = "number::lenient")]
    pub(super) process_id: i32,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct WaitResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) exit: Option<ExitEvent>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_encoded_as_json() {
        let event = StartResponse { event: Some(ProcessEvent::Stdout("hi\n".into())) };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"stdout":"aGkK"}"#);
        assert_eq!(serde_json::from_str::<StartResponse>(&text).unwrap(), event);
        let request = r#"{"processId":"7","input":"aGkK","unknown":[1]}"#;
        let request: WriteStdinRequest = serde_json::from_str(request).unwrap();
        assert_eq!((request.process_id, request.payload), (7, Some(Payload::Input("hi\n".into()))));
        let request: WriteStdinRequest = serde_json::from_str(r#"{"process_id":7,"eof":{}}"#).unwrap();
        assert_eq!(request.payload, Some(Payload::Eof(Empty {})));
        let signal: SendSignalRequest =
            serde_json::from_str(r#"{"processId":1,"signal":"SIGNAL_SIGTERM"}"#).unwrap();
        assert_eq!(signal.signal, 15);
        assert!(serde_json::from_str::<SendSignalRequest>(r#"{"signal":"SIGTERM"}"#).is_err());
        let connect = ConnectRequest { process_id: 1, offset: u64::MAX };
        let text = serde_json::to_string(&connect).unwrap();
        assert_eq!(text, r#"{"processId":1,"offset":"18446744073709551615"}"#);
        assert_eq!(serde_json::from_str::<ConnectRequest>(&text).unwrap(), connect);
    }

    #[test]
    fn signal_names_match_the_contract() {
        let contract = include_str!("../../proto/process/v1/process.proto");
        for (name, signal) in SIGNALS {
            assert!(contract.contains(&format!("  {name} = {};", signal as i32)), "{name}");
            assert_eq!(Signal::try_from(signal as i32), Ok(signal));
        }
        assert_eq!(contract.matches("  SIGNAL_").count(), SIGNALS.len());
    }

    proptest! {
        #[test]
        fn any_input_is_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), text in ".{0,80}") {
            let _ = StartRequest::decode(&bytes[..]);
            let _ = WriteStdinRequest::decode(&bytes[..]);
            let _ = serde_json::from_str::<StartRequest>(&text);
            let _ = serde_json::from_slice::<WriteStdinRequest>(&bytes);
        }
    }
}
