use super::*;
use crate::field_path::tests::joined_by;

/// Removes the empty parts that Go's JSON encoder writes and this reader leaves out.
fn without_empty(value: &mut Value, wanted: &Value) {
    if let (Value::Object(map), Value::Object(wanted)) = (value, wanted) {
        map.retain(|name, child| wanted.contains_key(name) || !(child == &json!({}) || child.is_null()));
        for (name, child) in map {
            if let Some(wanted) = wanted.get(name) {
                without_empty(child, wanted);
            }
        }
    }
}

/// Each line of vectors.txt was written by Go: the envelope in base64, and the JSON of the same object.
#[test]
fn envelopes_read_as_the_json_that_go_writes() {
    let mut kinds = Vec::new();
    for line in include_str!("vectors.txt").lines() {
        let (envelope, text) = line.split_once('\t').expect("a vector");
        let body = STANDARD.decode(envelope).expect("base64");
        let got = decode(&body).unwrap_or_else(|e| panic!("{text}: {e}"));
        let mut wanted: Value = serde_json::from_str(text).expect("JSON");
        without_empty(&mut wanted, &got);
        assert_eq!(got, wanted);
        kinds.push(got["kind"].as_str().unwrap_or_default().to_string());
        // Cut anywhere, it is an error or a shorter object, never a panic.
        for length in 0..body.len() {
            let _ = decode(&body[..length]);
        }
    }
    assert!(kinds.len() >= 13, "{kinds:?}");
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let text = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let meta = [text(1, api_version.as_bytes()), text(2, kind.as_bytes())].concat();
    [MAGIC, &text(1, &meta), &text(2, raw)].concat()
}

#[test]
fn unreadable_message_is_refused_with_its_cause() {
    let cases = [
        (
            b"{}".to_vec(),
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        ),
        (
            envelope("v1", "RangeAllocation", b""),
            "the body of media type \"application/vnd.kubernetes.protobuf\" holds a RangeAllocation of \"v1\", \
             which is accepted as JSON only",
        ),
        (
            envelope("v1", "Namespace", &[10, 200]),
            "unable to decode the protobuf body: : the message is cut short",
        ),
        (
            envelope("v1", "Namespace", &[10, 3, 10, 1, 0xff]),
            "unable to decode the protobuf body: metadata.name: text is not UTF-8",
        ),
        (
            envelope("v1", "Namespace", &[8, 1]),
            "unable to decode the protobuf body: metadata: a value of the wrong type",
        ),
    ];
    for (body, wanted) in cases {
        assert_eq!(decode(&body).expect_err("an error").to_string(), wanted);
    }
}

#[test]
fn schemas_nested_without_end_are_refused() {
    // `not` (field 28) in `not` in ...
    let mut schema = Vec::new();
    for _ in 0..200 {
        let mut length = Vec::new();
        let mut rest = schema.len();
        while rest >= 0x80 {
            length.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        length.push(rest as u8);
        schema = [&[0xe2, 0x01][..], &length, &schema].concat();
    }
    let shape = messages::message("apiextensions.JSONSchemaProps").expect("a message");
    let error = message(&schema, shape, FieldPath::ROOT, 0).expect_err("an error");
    assert!(error.to_string().ends_with("messages are nested too deeply"), "{error}");
}

#[test]
fn delete_options_of_every_group_are_read() {
    for group in ["v1", "apps/v1", "coordination.k8s.io/v1", "example.com/v1"] {
        let read = decode(&envelope(group, "DeleteOptions", &[8, 5])).expect("a body");
        assert_eq!(read, json!({"apiVersion": group, "kind": "DeleteOptions", "gracePeriodSeconds": 5}));
    }
}

#[test]
fn micro_time_on_a_whole_second_has_six_digits() {
    // `spec` (2) with `renewTime` (4) of 15 seconds after the epoch.
    let lease = envelope("coordination.k8s.io/v1", "Lease", &[18, 4, 34, 2, 8, 15]);
    assert_eq!(decode(&lease).expect("a body")["spec"]["renewTime"], "1970-01-01T00:00:15.000000Z");
}

#[test]
fn path_is_joined_for_an_error_only() {
    let varint = |mut number: usize| {
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push((number & 0x7f | 0x80) as u8);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    };
    let field =
        |number: usize, bytes: &[u8]| [varint(number << 3 | 2), varint(bytes.len()), bytes.to_vec()].concat();
    let (key, required) = (field(1, &[b'k'; 1 << 20]), field(23, b"v").repeat(100_000));
    let properties = |end: &[u8]| field(29, &[&key[..], &field(2, &[&required, end].concat())].concat());
    let shape = messages::message("apiextensions.JSONSchemaProps").expect("a message");
    let joined = joined_by(|| {
        let read = message(&properties(&[]), shape, FieldPath::ROOT, 0).expect("a message");
        assert_eq!(read["properties"].as_object().map(Map::len), Some(1));
    });
    assert_eq!(joined, 0);
    let error = message(&properties(&field(23, b"\xff")), shape, FieldPath::ROOT, 0).expect_err("no UTF-8");
    assert!(error.to_string().len() < 2048, "{error}");
}
