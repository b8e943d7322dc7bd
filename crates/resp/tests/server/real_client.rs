//! A real client library: the `redis` crate, in both protocols.

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, Client, RedisResult, Value};

use super::memory::MemoryStore;
use super::*;

pub async fn connect(server: &RespServer, protocol: &str) -> MultiplexedConnection {
    let client = Client::open(format!("redis://{}/?protocol={protocol}", server.local_addr())).unwrap();
    // However slow the machine is.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

async fn exercise(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    assert_eq!(connection.get::<_, Option<String>>("a").await?, None);
    connection.set::<_, _, ()>("a", "1").await?;
    assert_eq!(connection.get::<_, String>("a").await?, "1");
    assert!(!connection.set_nx::<_, _, bool>("a", "2").await?);
    assert!(connection.set_nx::<_, _, bool>("b", "2").await?);
    let xx = |key: &'static str| redis::cmd("SET").arg(key).arg("3").arg("XX").clone();
    assert_eq!(xx("nosuch").query_async::<Option<String>>(connection).await?, None);
    assert_eq!(xx("b").query_async::<Option<String>>(connection).await?, Some("OK".into()));
    let nx = redis::cmd("SET").arg("c").arg("x").arg("nx").query_async::<Value>(connection).await?;
    assert_eq!(nx, Value::Okay);
    connection.mset::<_, _, ()>(&[("d", "4"), ("e", "5"), ("d", "6")]).await?;
    let values: Vec<Option<String>> = connection.mget(&["a", "nosuch", "b", "d", "e"]).await?;
    assert_eq!(values, [Some("1".into()), None, Some("3".into()), Some("6".into()), Some("5".into())]);
    assert_eq!(connection.exists::<_, i64>(&["a", "a", "nosuch", "b"]).await?, 3);
    assert_eq!(connection.strlen::<_, i64>("c").await?, 1);
    assert_eq!(connection.del::<_, i64>(&["a", "a", "nosuch", "b"]).await?, 2);
    assert_eq!(connection.unlink::<_, i64>("c").await?, 1);
    assert_eq!(connection.exists::<_, i64>("a").await?, 0);
    connection.set_ex::<_, _, ()>("brief", "1", 10).await?;
    assert_eq!(connection.ttl::<_, i64>("brief").await?, 10);
    assert!(connection.persist::<_, bool>("brief").await?);
    assert_eq!(connection.pttl::<_, i64>("brief").await?, -1);
    assert_eq!(redis::cmd("DBSIZE").query_async::<i64>(connection).await?, 3);
    let nobody = redis::cmd("PUBLISH").arg("channel").arg("x").query_async::<i64>(connection).await;
    assert!(nobody.is_err());
    let time: (u64, u64) = redis::cmd("TIME").query_async(connection).await?;
    assert!(time.0 > 1_500_000_000 && time.1 < 1_000_000);

    let mut pipeline = redis::pipe();
    for i in 0..100 {
        pipeline.set(format!("p{i}"), i).ignore();
        pipeline.get(format!("p{i}"));
    }
    let got: Vec<i64> = pipeline.query_async(connection).await?;
    assert_eq!(got, (0..100).collect::<Vec<i64>>());
    Ok(())
}

#[tokio::test]
async fn the_redis_crate_works() {
    for threads in [0, 1, 2] {
        for protocol in ["resp2", "resp3"] {
            for fast in [false, true] {
                let server = start(MemoryStore::new(fast), RespConfig { threads, ..config() }).await;
                let mut connection = connect(&server, protocol).await;
                exercise(&mut connection).await.unwrap_or_else(|e| panic!("{protocol}: {e}"));
                drop(connection);
                server.shutdown().await;
            }
        }
    }
}

#[tokio::test]
async fn many_tasks_share_connections() {
    let server = start(MemoryStore::new(false), RespConfig { threads: 2, ..config() }).await;
    let mut tasks = tokio::task::JoinSet::new();
    for c in 0..4 {
        let connection = connect(&server, "resp3").await;
        for t in 0..8 {
            let mut connection = connection.clone();
            tasks.spawn(async move {
                for i in 0..100 {
                    let key = format!("{c}:{t}:{}", i % 5);
                    connection.set::<_, _, ()>(&key, i).await.unwrap();
                    assert_eq!(connection.get::<_, i64>(&key).await.unwrap(), i);
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}
