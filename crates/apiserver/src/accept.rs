//! Form of answer that a client accepts.

use http::{HeaderMap, header};

use crate::failure::Failure;
use crate::protobuf;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The objects themselves.
    Json,
    /// The same as YAML.
    Yaml,
    /// Rows, as `kubectl get` prints them.
    Table,
    /// Only the metadata of the objects.
    Metadata,
}

/// The first form of the `Accept` header that is known here. Some answers are not objects with rows: `has_rows` is false.
pub(crate) fn form(headers: &HeaderMap, has_rows: bool) -> Result<Form, Failure> {
    let Some(accept) = headers.get(header::ACCEPT) else { return Ok(Form::Json) };
    let accept = accept.to_str().map_err(|_| Failure::not_acceptable())?;
    if accept.trim().is_empty() {
        return Ok(Form::Json);
    }
    let fits = |form: &Form| has_rows || *form != Form::Table;
    accept.split(',').filter_map(of_range).find(fits).ok_or_else(Failure::not_acceptable)
}

fn of_range(range: &str) -> Option<Form> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let (mut shape, mut group, mut version) = (None, "", "");
    for part in parts {
        match part.split_once('=') {
            Some(("as", value)) => shape = Some(value),
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            _ => {}
        }
    }
    let meta = group == "meta.k8s.io" && matches!(version, "v1" | "v1beta1");
    match (media.as_str(), shape) {
        ("application/json" | "*/*" | "application/*", None) => Some(Form::Json),
        ("application/json", Some("Table")) if meta => Some(Form::Table),
        ("application/json", Some("PartialObjectMetadata" | "PartialObjectMetadataList")) if meta => {
            Some(Form::Metadata)
        }
        ("application/yaml", None) => Some(Form::Yaml),
        // Clients of Protobuf decode by the type of the answer, and all of them read JSON.
        _ if shape.is_none() && media == protobuf::MEDIA_TYPE => Some(Form::Json),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(accept: &str) -> Option<Form> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        form(&headers, true).ok()
    }

    #[test]
    fn the_first_known_range_counts() {
        assert_eq!(form(&HeaderMap::new(), true).unwrap(), Form::Json);
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(of(kubectl), Some(Form::Table));
        assert_eq!(of("application/vnd.kubernetes.protobuf,application/json"), Some(Form::Json));
        assert_eq!(of("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"), Some(Form::Metadata));
        assert_eq!(of("*/*"), Some(Form::Json));
        assert_eq!(of("application/yaml"), Some(Form::Yaml));
        assert_eq!(of("application/vnd.kubernetes.protobuf"), Some(Form::Json));
        assert_eq!(of("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io"), None);
        assert_eq!(of("text/html"), None);
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, kubectl.parse().unwrap());
        assert_eq!(form(&headers, false).unwrap(), Form::Json);
        headers.insert(header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io".parse().unwrap());
        assert_eq!(form(&headers, false).unwrap_err().code, 406);
    }
}
