//! What an application sees of the client while nothing fails, and what it is told of its own mistakes.

use sextant_client::{Client, ClientOptions, Condition, Effect, Expected, Operation, ScanOptions};
use sextant_common::ErrorKind;
use sextant_common::ids::Seq;
use sextant_common::manifest::{OptionsChange, TableOptions};

use super::server::Fault;
use super::{Cluster, cluster};

#[tokio::test(start_paused = true)]
async fn all_operations_reach_the_store() {
    let Cluster { client, first, .. } = cluster(ClientOptions::default()).await;
    let seq = client.put("", "a", "1").await.unwrap();
    assert_eq!(client.get("", "a").await.unwrap().unwrap().seq, seq);
    assert_eq!(client.get("", "b").await.unwrap(), None);
    assert!(!client.insert("", "a", "2").await.unwrap().applied);
    assert!(client.insert("", "b", "2").await.unwrap().applied);
    let found = client.multi_get("", vec!["a".into(), "x".into(), "b".into()]).await.unwrap();
    let values: Vec<_> = found.into_iter().map(|r| r.map(|r| r.value)).collect();
    assert_eq!(values, [Some("1".into()), None, Some("2".into())]);
    let put = |value: &'static str| Effect::Put(value.into());
    assert!(client.compare_and_set("", "a", Expected::Value("1".into()), put("3")).await.unwrap().applied);
    assert!(!client.compare_and_set("", "a", Expected::Value("1".into()), put("4")).await.unwrap().applied);
    assert!(!client.compare_and_set("", "a", Expected::Absent, put("4")).await.unwrap().applied);
    let seq = client.get("", "a").await.unwrap().unwrap().seq;
    assert!(client.compare_and_set("", "a", Expected::Seq(seq), Effect::Delete).await.unwrap().applied);
    let batch = vec![
        Operation::put("", "c", "5"),
        Operation::put("", "b", "6").only_if(Condition::Absent).skip_on_failure(),
        Operation::delete("", "b"),
    ];
    let outcome = client.batch(batch).await.unwrap();
    assert_eq!(outcome.results.iter().map(|r| r.applied).collect::<Vec<_>>(), [true, false, true]);
    assert!(client.delete("", "c").await.unwrap() > Seq(0));
    assert_eq!(client.increment("", "n", 5).await.unwrap(), 5);
    assert_eq!(client.increment("", "n", -6).await.unwrap(), -1);
    assert_eq!(client.append("", "n", "0").await.unwrap(), 3);
    assert_eq!(client.get_and_put("", "n", "word").await.unwrap(), Some("-10".into()));
    let error = client.increment("", "n", 1).await.unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("not an integer"), "{error}");
    assert_eq!(client.get_and_delete("", "n").await.unwrap(), Some("word".into()));
    assert_eq!(client.get_and_delete("", "n").await.unwrap(), None);
    assert!(first.store.lock().records.is_empty());
    assert_eq!(first.store.lock().sessions_opened, 1, "one session served all writes");
}

#[tokio::test(start_paused = true)]
async fn faults_of_the_request_are_found_here() {
    let Cluster { client, first, .. } = cluster(ClientOptions::default()).await;
    for error in [
        client.get("", "").await.unwrap_err(),
        client.put("", vec![0; 16 * 1024 + 1], "v").await.unwrap_err(),
        client.put("", "k", vec![0; 8 * 1024 * 1024 + 1]).await.unwrap_err(),
        client.create_table("bad name", &Default::default()).await.unwrap_err(),
        client.drop_table("bad name").await.unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Invalid);
    }
    first.fail_next([Fault::Refuse(ErrorKind::UnknownTable)]);
    assert_eq!(client.put("t", "k", "v").await.unwrap_err().kind, ErrorKind::UnknownTable);
}

/// Applications spawn these: a future that is not `Send` breaks their build.
#[test]
fn all_futures_are_send() {
    fn check(_: impl Send) {}
    fn never(client: &Client, options: &TableOptions) {
        check(client.get("", "k"));
        check(client.multi_get("", vec![]));
        check(client.put("", "k", "v"));
        check(client.insert("", "k", "v"));
        check(client.delete("", "k"));
        check(client.delete_checked("", "k"));
        check(client.compare_and_set("", "k", Expected::Absent, Effect::Delete));
        check(client.batch(vec![]));
        check(client.scan("", ScanOptions::default()).collect_records());
        check(client.create_table("t", options));
        check(client.list_tables());
        check(client.drop_table("t"));
        check(client.alter_table("t", &OptionsChange::default()));
        check(client.status());
        check(client.flush(None));
    }
    let _: fn(&Client, &TableOptions) = never;
}
