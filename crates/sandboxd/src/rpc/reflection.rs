//! Server reflection, for clients without the `.proto` file.

use futures::stream;
use hyper::Response;
use prost::{Message, Oneof};
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::reply;
use super::status::{Code, Status};
use crate::answer::Body;

/// `process.proto` and its imports, compiled: the output of
/// `protoc -I proto --include_imports --descriptor_set_out=proto/descriptors.binpb process/v1/process.proto`.
/// `protoc -I proto --include_imports --descriptor_set_out=proto/descriptors.binpb process/v1/process.proto`.
const DESCRIPTORS: &[u8] = include_bytes!("../../proto/descriptors.binpb");
const SERVICE: &str = "process.v1.ProcessService";
const SERVICES: [&str; 3] =
    [SERVICE, "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

#[derive(Clone, PartialEq, Message)]
struct FileSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

/// Decoded part of a compiled file.
#[derive(Clone, PartialEq, Message)]
struct FileName {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
struct Request {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(oneof = "Asked", tags = "3, 4, 5, 6, 7")]
    #[serde(skip)]
    asked: Option<Asked>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Asked {
    #[prost(string, tag = "3")]
    FileByName(String),
    #[prost(string, tag = "4")]
    FileWithSymbol(String),
    #[prost(bytes = "vec", tag = "5")]
    FileWithExtension(Vec<u8>),
    #[prost(string, tag = "6")]
    ExtensionNumbers(String),
    #[prost(string, tag = "7")]
    Services(String),
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct Answer {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(message, optional, tag = "2")]
    #[serde(skip)]
    request: Option<Request>,
    #[prost(oneof = "Outcome", tags = "4, 6, 7")]
    #[serde(skip)]
    outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Outcome {
    #[prost(message, tag = "4")]
    Files(Files),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Failure(Failure),
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    services: Vec<FileName>,
}

#[derive(Clone, PartialEq, Message)]
struct Failure {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Responds to each request as it arrives.
pub(super) fn answer(call: Call) -> Response<Body> {
    let Call { protocol, incoming, .. } = call;
    let answers = stream::unfold(Some(incoming), |incoming| async move {
        let mut incoming = incoming?;
        match incoming.next::<Request>().await {
            Ok(None) => None,
            Ok(Some(request)) => Some((respond(request), Some(incoming))),
            Err(status) => Some((Err(status), None)),
        }
    });
    reply::many(protocol, answers)
}

fn respond(request: Request) -> Result<Answer, Status> {
    let set = FileSet::decode(DESCRIPTORS).map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    let with_name = |wanted: &str| set.files.iter().find(|file| name(file) == wanted).cloned();
    let found = match &request.asked {
        Some(Asked::Services(_)) => {
            let services = SERVICES.iter().map(|name| FileName { name: (*name).to_owned() }).collect();
            Ok(Outcome::Services(Services { services }))
        }
        Some(Asked::FileByName(wanted)) => with_name(wanted).ok_or(wanted.clone()).map(one_file),
        Some(Asked::FileWithSymbol(symbol)) => {
            let file = match symbol.as_str() {
                "google.protobuf.Empty" => with_name("google/protobuf/empty.proto"),
                symbol if symbol.starts_with("process.v1.") => with_name("process/v1/process.proto"),
                _ => None,
            };
            file.ok_or(symbol.clone()).map(one_file)
        }
        Some(Asked::FileWithExtension(_) | Asked::ExtensionNumbers(_)) => Err("extensions".to_owned()),
        None => return Err(Status::new(Code::InvalidArgument, "the request is empty")),
    };
    let outcome = found.unwrap_or_else(|what| {
        Outcome::Failure(Failure { code: Code::NotFound as i32, message: format!("{what} not found") })
    });
    Ok(Answer { host: request.host.clone(), request: Some(request), outcome: Some(outcome) })
}

fn one_file(file: Vec<u8>) -> Outcome {
    Outcome::Files(Files { files: vec![file] })
}

fn name(file: &[u8]) -> String {
    FileName::decode(file).map(|file| file.name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiled_files_are_embedded() {
        let set = FileSet::decode(DESCRIPTORS).unwrap();
        let names: Vec<String> = set.files.iter().map(|file| name(file)).collect();
        assert_eq!(names, ["google/protobuf/empty.proto", "process/v1/process.proto"]);
    }
}
