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
        (r"'abc-1'.matches('^\\w+(-\\d+)?$') && 'a b'.matches('\\S+\\s[a-z]{1,63}')", true),
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
fn each_policy_has_its_budget_and_the_request_a_larger_one() {
    let object = json!((0..30_000).collect::<Vec<_>>());
    let budget = Budget::default();
    let mut evaluation = Evaluation::new(&budget);
    evaluation.set("object", &object);
    let costly = compile("object.all(a, object.size() > 0)", &["object"]).unwrap();
    let cheap = compile("object[0] == 0", &["object"]).unwrap();
    let ended = "operation cancelled: actual cost limit exceeded";
    assert_eq!(evaluation.truth(&costly).unwrap_err(), ended);
    assert_eq!(
        evaluation.truth(&cheap),
        Ok(true),
        "a costly expression leaves units to the others of its policy"
    );
    assert_eq!(evaluation.truth(&costly).unwrap_err(), ended);
    assert_eq!(evaluation.truth(&cheap).unwrap_err(), ended);
    budget.begin();
    assert_eq!(evaluation.truth(&cheap), Ok(true), "another policy has its own units");
    let policies = (0..1000).take_while(|_| {
        budget.begin();
        evaluation.truth(&costly).unwrap_err();
        !budget.is_used_up()
    });
    assert!((1..10).contains(&policies.count()));
    budget.begin();
    assert_eq!(evaluation.truth(&cheap).unwrap_err(), ended);
    budget.renew();
    assert_eq!(evaluation.truth(&cheap), Ok(true));
}

#[test]
fn use_of_a_pattern_is_paid_by_its_compiled_size() {
    for (pattern, least) in [("^[a-z]$", 50), (r"\\S+\\s[a-z]{1,63}", 200)] {
        let budget = Budget::default();
        let expression = compile(&format!("!'-'.matches('{pattern}')"), &[]).unwrap();
        assert_eq!(Evaluation::new(&budget).truth(&expression), Ok(true));
        let used = OF_REQUEST - budget.0.request.load(Ordering::Relaxed);
        assert!((least..least + 1000).contains(&used), "{pattern}: {used}");
    }
}

/// The program ends at a panic, so no object may lead to one. Overflows of numbers panic in this build.
#[test]
fn functions_survive_hostile_values() {
    let object = json!({
        "long": "9223372036s".repeat(4_000), "umlaut": "a\u{301}\u{e9}\u{1f600}", "empty": "", "huge": "1e2147483647",
        "tiny": "-1e-2147483648", "least": i64::MIN, "most": u64::MAX, "float": 1e308, "null": null,
        "list": [[1], {"a": null}, "x", -1], "map": {"": 1}, "time": "9999-12-31T23:59:59Z",
    });
    let values: Vec<String> =
        object.as_object().unwrap().keys().map(|name| format!("object.{name}")).collect();
    let others = ["object.least", "object.umlaut", "object.list", "-1", "64"];
    let mut evaluated_calls = 0;
    let mut call = |text: String| {
        if compile(&text, &["object"]).is_ok() {
            evaluated_calls += 1;
            let _ = evaluated(&text, &object);
        }
    };
    for function in metering::functions() {
        for value in &values {
            call(format!("{function}({value})"));
            call(format!("{value}.{function}()"));
            for other in others {
                call(format!("{function}({value}, {other})"));
                call(format!("{value}.{function}({other})"));
            }
            call(format!("{value}.{function}(object.umlaut, -1)"));
            call(format!("{value}.{function}(3, object.most)"));
        }
    }
    for value in &values {
        for other in values.iter().map(String::as_str).chain(others) {
            for operator in ["+", "-", "*", "/", "%", "<", "==", "in"] {
                call(format!("{value} {operator} {other}"));
            }
            call(format!("object.map[{value}] == {other}"));
            call(format!("object.list[{value}] == {other}"));
            call(format!("quantity(string({value})).isLessThan(quantity('1'))"));
            call(format!("timestamp(object.time) + duration(string({value}))"));
        }
    }
    assert!(evaluated_calls > 1000, "{evaluated_calls}");
}

#[test]
fn quantities_out_of_range_are_no_small_ones() {
    for text in ["1e40", "1e39", "99999999999999999999999999999999999999", "1e2147483647", "x"] {
        let refused =
            evaluated("quantity(object).isLessThan(quantity('1Gi'))", &json!(text)).expect_err(text);
        assert!(refused.contains("is not a quantity, or out of range"), "{text}: {refused}");
    }
    for (text, expected) in [("500Mi", true), ("2Gi", false), ("1e3", true), ("1.5", true), ("8Ei", false)] {
        let less = evaluated("quantity(object).isLessThan(quantity('1Gi'))", &json!(text));
        assert_eq!(less, Ok(Cel::Bool(expected)), "{text}");
    }
}

#[test]
fn value_of_another_type_is_no_truth() {
    let expression = compile("1 + 1", &[]).unwrap();
    let refused = Evaluation::new(&Budget::default()).truth(&expression).unwrap_err();
    assert_eq!(refused, "must evaluate to bool, got int");
}
