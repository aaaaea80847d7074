use serde_json::json;

use super::*;

fn evaluated(text: &str, object: &Value) -> Result<Cel, String> {
    let expression = compile(text, &["object", "oldObject"])?;
    let mut evaluation = Evaluation::new(&Budget::default());
    evaluation.set("object", object);
    evaluation.set("oldObject", &Value::Null);
    evaluation.value(&expression)
}

#[test]
fn expressions_have_the_values_of_kubernetes() {
    let pod = json!({
        "metadata": {"name": "a", "namespace": "n", "labels": {"app.kubernetes.io/name": "x"}},
        "spec": {"replicas": 3, "containers": [{"name": "c", "image": "i:1"}, {"name": "d", "image": "j:2"}]},
    });
    for (text, expected) in [
        ("object.spec.replicas <= 5", true),
        ("object.metadata.labels['app.kubernetes.io/name'] == 'x'", true),
        ("object.metadata.namespace == 'n'", true),
        ("has(object.metadata.annotations)", false),
        ("has(object.metadata.labels) && 'app.kubernetes.io/name' in object.metadata.labels", true),
        ("object.spec.containers.all(c, c.image.matches('^[a-z]:[0-9]$'))", true),
        ("object.spec.containers.exists(c, c.name == 'e')", false),
        ("object.spec.containers.map(c, c.name) == ['c', 'd']", true),
        ("object.spec.containers.filter(c, c.name != 'c').size() == 1", true),
        ("object.spec.containers.exists_one(c, c.name == 'd')", true),
        ("oldObject == null", true),
        ("quantity('1Gi').isGreaterThan(quantity('500Mi'))", true),
        ("math.greatest(1, object.spec.replicas) == 3", true),
        ("sets.contains(['c', 'd', 'e'], object.spec.containers.map(c, c.name))", true),
        ("'%s has %d'.format([object.metadata.name, object.spec.replicas]) == 'a has 3'", true),
        ("object.metadata.name.replace('a', 'b') == 'b'", true),
        ("{'a': 1}.a == 1 && [1, 2][1] == 2", true),
    ] {
        assert_eq!(evaluated(text, &pod), Ok(Cel::Bool(expected)), "{text}");
    }
}

#[test]
fn invalid_expressions_are_refused_with_the_cause() {
    for (text, cause) in [
        ("object.", "compilation failed"),
        ("objekt.spec", "undeclared reference to 'objekt'"),
        ("object.spec.frobnicate()", "undeclared reference to 'frobnicate'"),
        ("lists.range(1000000000).size() > 0", "undeclared reference to 'lists.range'"),
        ("Object{spec: 1}", "undeclared reference to 'Object'"),
        ("object.matches(object.spec)", "the pattern of 'matches' must be a string literal"),
        ("object.matches('(')", "the pattern of 'matches'"),
        ("object.matches('(\\\\w{100}){100}')", "the pattern of 'matches'"),
        ("'%.999999999f'.format([1.0])", "a precision of 'format'"),
        ("object.?spec.?paused.orValue(false)", "unsupported syntax '.?'"),
        ("[1].all(x, y == x)", "undeclared reference to 'y'"),
        ("[1].all(x, true) && x == 1", "undeclared reference to 'x'"),
    ] {
        let refused = compile(text, &["object"]).expect_err(text);
        assert!(refused.contains(cause), "{text}: {refused}");
    }
    let nested = format!("{}1{}", "(".repeat(2000), ")".repeat(2000));
    assert!(compile(&nested, &[]).is_err());
    assert!(
        compile(&format!("'{}' == ''", "x".repeat(EXPRESSION_BYTES)), &[]).unwrap_err().contains("at most")
    );
}

#[test]
fn evaluation_ends_when_its_budget_is_used_up() {
    let items: Vec<Value> = (0..3000).map(|number| json!(number)).collect();
    let object = json!({"items": items, "text": "x".repeat(1 << 20)});
    for text in [
        "object.items.all(a, object.items.all(b, object.items.all(c, a + b + c >= 0)))",
        "object.items.map(a, object.items).size() == 0",
        "object.items.map(a, a).map(a, a).size() == 3000",
        "object.text.replace('x', object.text) == ''",
        "object.items.all(a, object.text.contains('y') || true)",
        "object.items.all(a, object == object)",
        "object.items.exists(a, object.items.exists(b, object.items.exists(c, a + b + c < 0))) || true",
    ] {
        let ended = evaluated(text, &object).expect_err(text);
        assert!(ended.contains("cost limit exceeded"), "{text}: {ended}");
    }
    let budget = Budget::default();
    let mut evaluation = Evaluation::new(&budget);
    evaluation.set("object", &object);
    let expression = compile("object.items.all(a, a >= 0)", &["object"]).unwrap();
    let runs = (0..1000).take_while(|_| evaluation.truth(&expression).is_ok()).count();
    assert!((1..1000).contains(&runs), "the budget is that of all expressions: {runs}");
}

#[test]
fn value_of_another_type_is_no_truth() {
    let expression = compile("1 + 1", &[]).unwrap();
    let refused = Evaluation::new(&Budget::default()).truth(&expression).unwrap_err();
    assert_eq!(refused, "must evaluate to bool, got int");
}
