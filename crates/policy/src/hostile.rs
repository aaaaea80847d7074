//! Hostile tests of the parsers, from arbitrary bytes.

use crate::expression::{Expression, Moment};
use crate::http::PathPattern;
use crate::request::{Call, Path};

/// Reads any bytes as the path of a request. One that is accepted has one meaning.
pub fn path(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(path) = Path::read(text) else { return };
    let mut segments = path.as_str().split('/').skip(1).collect::<Vec<_>>();
    assert!(path.as_str().starts_with('/') && !path.as_str().contains(['\\', '\0']), "{text:?}");
    assert!(segments.pop().is_some() && segments.iter().all(|segment| !segment.is_empty()), "{text:?}");
    assert!(!path.as_str().split('/').any(|segment| matches!(segment, "." | "..")), "{text:?}");
    if let Ok(pattern) = PathPattern::try_from("/**".to_owned()) {
        assert!(pattern.matches(path.as_str()), "{text:?}");
    }
}

/// Reads any bytes as calls of JSON-RPC. What is accepted is what other readers find.
pub fn calls(bytes: &[u8]) {
    let Some(calls) = Call::parse(bytes) else { return };
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) else { panic!("it is no JSON") };
    let messages = match &value {
        serde_json::Value::Array(messages) => messages.as_slice(),
        one => std::slice::from_ref(one),
    };
    assert_eq!(calls.len(), messages.len());
    for (call, message) in calls.iter().zip(messages) {
        assert_eq!(call.method.as_deref(), message.get("method").and_then(|method| method.as_str()));
        let tool = message.pointer("/params/name").and_then(|name| name.as_str());
        assert!(call.tool.is_none() || call.tool.as_deref() == tool);
    }
}

/// Reads any bytes as an expression, and evaluates it.
pub fn expression(bytes: &[u8]) {
    let Ok(text) = String::from_utf8(bytes.to_vec()) else { return };
    if let Ok(expression) = Expression::try_from(text) {
        let _ = expression.evaluate(&Moment::default(), None, None);
    }
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("policy_path", super::path);
        feed("policy_calls", super::calls);
        feed("policy_expression", super::expression);
    }
}
