//! Objects of OCSF 1.8, as far as events have them.

use serde::Serialize;

use crate::text::Text;

/// Version of the schema.
pub(crate) const VERSION: &str = "1.8.0";

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Metadata {
    pub(crate) version: &'static str,
    pub(crate) product: Product,
    pub(crate) profiles: &'static [&'static str],
    pub(crate) event_code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) correlation_uid: Option<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<Tag>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Product {
    pub(crate) name: &'static str,
    pub(crate) vendor_name: &'static str,
    pub(crate) version: &'static str,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Tag {
    pub(crate) name: &'static str,
    pub(crate) value: Text,
}

/// An object with a name and a uid, such as a policy.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Named {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<Text>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Actor {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app_name: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app_uid: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<User>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct User {
    pub(crate) name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<Named>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Device {
    /// 6: virtual.
    pub(crate) type_id: u8,
    pub(crate) name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<Named>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Endpoint {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ip: Option<std::net::IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) svc_name: Option<Text>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Traffic {
    pub(crate) bytes: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct HttpRequest {
    pub(crate) http_method: Text,
    pub(crate) url: Url,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user_agent: Option<Text>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Url {
    pub(crate) path: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheme: Option<&'static str>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct HttpResponse {
    pub(crate) code: u16,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Query {
    pub(crate) hostname: Text,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Text>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Process {
    pub(crate) uid: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cmd_line: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<Named>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct File {
    pub(crate) name: Text,
    pub(crate) path: Text,
    pub(crate) type_id: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Api {
    pub(crate) operation: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<ApiRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response: Option<HttpResponse>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct ApiRequest {
    pub(crate) uid: Text,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Resource {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<Text>,
    pub(crate) name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<Text>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct FindingInfo {
    pub(crate) uid: Text,
    pub(crate) title: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) desc: Option<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) types: Vec<Text>,
}
