//! Lists, watches, tables.

use super::*;

#[tokio::test]
async fn watches_from_every_revision() {
    let app = app().await;
    for name in ["a", "b"] {
        assert_eq!(call(&app, "POST", CONFIG_MAPS, &config_map(name)).await.0, 201);
    }
    let (_, list) = call(&app, "GET", CONFIG_MAPS, "").await;
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    // Unset and 0 show what is there.
    for query in ["watch=1", "watch=true&resourceVersion=0"] {
        let mut events = Events::of(&app, &format!("{CONFIG_MAPS}?{query}"), "").await;
        assert_eq!(events.brief().await, ("ADDED".into(), "a".into()));
        assert_eq!(events.brief().await, ("ADDED".into(), "b".into()));
    }
    // A revision shows what came after, even before the watch.
    call(&app, "DELETE", &format!("{CONFIG_MAPS}/a"), "").await;
    let mut events = Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&resourceVersion={revision}"), "").await;
    let event = events.next().await;
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("a")));
    let gone: u64 = event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(gone > revision.parse().unwrap());
    // Initial events, then the bookmark that ends them.
    let path = format!(
        "{CONFIG_MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut events = Events::of(&app, &path, "").await;
    assert_eq!(events.brief().await, ("ADDED".into(), "b".into()));
    let end = events.next().await;
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["kind"], "ConfigMap");
    // A time limit ends it.
    let mut events =
        Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1&resourceVersion={gone}"), "").await;
    assert!(
        tokio::time::timeout(std::time::Duration::from_secs(3), events.body.next()).await.unwrap().is_none()
    );
    let path = format!("{CONFIG_MAPS}?watch=1&sendInitialEvents=true");
    assert_eq!(call(&app, "GET", &path, "").await.0, 422);
}

#[tokio::test]
async fn watch_reports_a_revision_that_is_too_old() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { data: Some(folder.path().into()), ..Config::default() };
    let server = ApiServer::open(config.clone()).await.unwrap();
    let router = server.router_as(Identity::admin());
    call(&router, "POST", CONFIG_MAPS, &config_map("a")).await;
    server.close().await;
    drop((server, router));
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let app = ApiServer::open(config).await.unwrap().router_as(Identity::admin());
    let (_, map) = call(&app, "GET", &format!("{CONFIG_MAPS}/a"), "").await;
    assert_eq!(map["data"]["a"], "b", "what was acknowledged is there after a restart");
    let mut events = Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&resourceVersion=1"), "").await;
    let event = events.next().await;
    assert_eq!(
        (&event["type"], &event["object"]["code"], &event["object"]["reason"]),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    let (code, status) = call(&app, "GET", &format!("{CONFIG_MAPS}?resourceVersion=99999"), "").await;
    assert_eq!((code.as_u16(), &status["reason"]), (504, &json!("Timeout")));
}

#[tokio::test]
async fn selectors_in_lists_and_watches() {
    let app = app().await;
    let mut events = Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&labelSelector=app%3Dx"), "").await;
    let mut one =
        Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3Db"), "").await;
    let labelled = |name: &str, app: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": app}}})
            .to_string()
    };
    call(&app, "POST", CONFIG_MAPS, &labelled("a", "x")).await;
    call(&app, "POST", CONFIG_MAPS, &labelled("b", "y")).await;
    let patch = |label: &str| json!({"metadata": {"labels": {"app": label}}}).to_string();
    typed(&app, "PATCH", &format!("{CONFIG_MAPS}/b"), "application/merge-patch+json", &patch("x")).await;
    typed(&app, "PATCH", &format!("{CONFIG_MAPS}/a"), "application/merge-patch+json", &patch("z")).await;
    assert_eq!(events.brief().await, ("ADDED".into(), "a".into()));
    assert_eq!(events.brief().await, ("ADDED".into(), "b".into()));
    assert_eq!(events.brief().await, ("DELETED".into(), "a".into()));
    assert_eq!(one.brief().await, ("ADDED".into(), "b".into()));
    assert_eq!(one.brief().await, ("MODIFIED".into(), "b".into()));
    let names = |list: &Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let (_, list) = call(&app, "GET", &format!("{CONFIG_MAPS}?labelSelector=app+in+(x,q)"), "").await;
    assert_eq!(names(&list), ["b"]);
    let (_, list) = call(&app, "GET", &format!("{CONFIG_MAPS}?fieldSelector=metadata.name!%3Db"), "").await;
    assert_eq!(names(&list), ["a"]);
    assert_eq!(call(&app, "GET", &format!("{CONFIG_MAPS}?fieldSelector=data.a%3Db"), "").await.0, 400);
}

#[tokio::test]
async fn pages() {
    let app = app().await;
    for n in 0..5 {
        call(&app, "POST", CONFIG_MAPS, &config_map(&format!("c{n}"))).await;
    }
    let (_, first) = call(&app, "GET", &format!("{CONFIG_MAPS}?limit=2"), "").await;
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    call(&app, "POST", CONFIG_MAPS, &config_map("c9")).await;
    call(&app, "DELETE", &format!("{CONFIG_MAPS}/c3"), "").await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    let names = |list: &Value| {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (_, second) = call(&app, "GET", &format!("{CONFIG_MAPS}?continue={token}"), "").await;
    assert_eq!(names(&second), ["c2", "c3", "c4"], "as at the first page");
    assert_eq!(second["metadata"]["resourceVersion"], revision, "nothing since is missed");
    let exact = format!("{CONFIG_MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact");
    assert_eq!(names(&call(&app, "GET", &exact, "").await.1).len(), 5);
    assert_eq!(call(&app, "GET", &format!("{CONFIG_MAPS}?continue=x"), "").await.0, 400);
}

#[tokio::test]
async fn tables_and_bare_metadata() {
    let app = app().await;
    let (code, _) = call(&app, "POST", SANDBOXES, &sandbox("s").to_string()).await;
    assert_eq!(code, 201);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let (_, list) = get_as(&app, SANDBOXES, table).await;
    assert_eq!(list["kind"], "Table");
    assert_eq!(list["rows"][0]["cells"][0], "s");
    let columns: Vec<_> =
        list["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Name", "Ready", "Reason", "Age"]);
    assert!(list["metadata"]["resourceVersion"].is_string());
    let mut events = Events::of(&app, &format!("{SANDBOXES}?watch=1"), table).await;
    let event = events.next().await;
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!("Table")));
    assert!(event["object"]["columnDefinitions"].is_array());
    call(&app, "DELETE", &format!("{SANDBOXES}/s"), "").await;
    let event = events.next().await;
    assert_eq!((&event["type"], &event["object"]["columnDefinitions"]), (&json!("DELETED"), &Value::Null));
    call(&app, "POST", CONFIG_MAPS, &config_map("m")).await;
    let bare = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let (_, object) = get_as(&app, &format!("{CONFIG_MAPS}/m"), bare).await;
    assert_eq!((&object["kind"], object.get("data")), (&json!("PartialObjectMetadata"), None));
    // A review has no rows.
    let review = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let body = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}).to_string();
    let (code, refused) = text(send(&app, review.body(Body::from(body)).unwrap()).await).await;
    assert_eq!(code, 406, "{refused}");
}
