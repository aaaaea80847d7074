//! Bodies that are held until they were judged.

use super::*;
use crate::room::Kind;

#[tokio::test]
async fn body_that_is_held_waits_for_room() {
    let tools = r#"{"name": "tools", AT, "mcp": [{"tools": ["search_*"]}]}"#;
    let all = r#"{"name": "all", AT, "http": [{}]}"#;
    let call = r#"{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "search_a"}}"#;
    for (rules, scans, kind) in
        [(tools, false, Kind::Request), (all, true, Kind::Request), (all, true, Kind::Answer)]
    {
        let site = Site::new(rules).await;
        if scans {
            let level = site.sandbox.rules().levels[0].clone();
            let scanner = Some(serde_json::from_str(r#"{"outbound": "Block", "inbound": "Block"}"#).unwrap());
            site.sandbox.set_levels([Arc::new(Level { scanner, ..(*level).clone() })].into());
        }
        let taken = site.sandbox.room.fill(kind);
        let answer = site.post("/", call);
        tokio::pin!(answer);
        tokio::select! {
            answer = &mut answer => panic!("{kind:?} {scans}: {answer}"),
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
        }
        drop(taken);
        let answer = answer.await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(call), "{kind:?} {scans}: {answer}");
    }
}
