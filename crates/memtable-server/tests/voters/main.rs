//! Changes of a partition's voters, on real servers: removed, added again, the leader itself, refused.

mod servers;
#[path = "../support/mod.rs"]
mod support;

use sextant_common::ErrorKind;

use servers::*;
use support::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voters_go_and_come_back_and_nothing_is_lost() {
    let mut c = Cluster::start().await;
    c.write("before").await;
    c.settled(&[1, 2, 3, 4]).await;
    let removed = (c.leader().await + 1) % SERVERS;
    let without_it = without(&[removed as u64 + 1]);
    assert_eq!(c.change(&without_it).await.unwrap(), without_it);
    c.write("three").await;
    c.settled(&without_it).await;
    eventually(async || (c.partition(removed)["role"] == "follower").then_some(())).await;
    // It gets nothing any more, and nobody can make it leader.
    let refused = c.ask_transfer(removed as u64 + 1).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid, "{refused}");
    c.write("not for all").await;
    let newest = c.partition(c.leader().await)["last_index"].as_u64();
    for i in (0..SERVERS).filter(|i| *i != removed) {
        eventually(async || (c.partition(i)["last_index"].as_u64() >= newest).then_some(())).await;
    }
    assert!(c.partition(removed)["last_index"].as_u64() < newest);

    assert_eq!(c.change(&[1, 2, 3, 4]).await.unwrap(), [1, 2, 3, 4]);
    c.write("four again").await;
    c.settled(&[1, 2, 3, 4]).await;
    c.caught_up(removed).await;

    let other = (c.leader().await + 2) % SERVERS;
    c.change(&without(&[other as u64 + 1])).await.unwrap();
    c.write("another removed").await;
    c.settled(&without(&[other as u64 + 1])).await;
    c.check().await;
    // The change is what a restart finds.
    for i in 0..SERVERS {
        c.stop_one(i).await;
    }
    for i in 0..SERVERS {
        c.start_one(i).await;
    }
    c.settled(&without(&[other as u64 + 1])).await;
    assert_ne!(c.leader().await, other);
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_removes_itself_and_another_serves() {
    let mut c = Cluster::start().await;
    c.write("before").await;
    for turn in 0..2 {
        let leader = c.remove_leader().await.unwrap();
        let rest = without(&[leader as u64 + 1]);
        eventually(async || (c.partition(leader)["serving"] != true).then_some(())).await;
        c.settled(&rest).await;
        let next = c.leader().await;
        assert_ne!(next, leader);
        assert_eq!(c.partition(leader)["epoch"], serde_json::Value::Null, "its desk is closed");
        c.write(&format!("turn {turn}")).await;
        c.check().await;
        // Everybody again; its log holds entries of an old term.
        c.change(&[1, 2, 3, 4]).await.unwrap();
        c.caught_up(leader).await;
    }
    c.transfer(1).await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_handed_to_a_server_that_is_not_there() {
    let mut c = Cluster::start().await;
    c.write("before").await;
    c.settled(&[1, 2, 3, 4]).await;
    let leader = c.leader().await;
    let gone = (leader + 1) % SERVERS;
    c.caught_up(gone).await;
    c.stop_one(gone).await;
    // Told at once, and not to try again: it has the whole log, but does not answer.
    let refused = c.ask_transfer(gone as u64 + 1).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid, "{refused}");
    assert!(refused.message.contains("does not answer"), "{refused}");
    c.write("after").await;
    assert_ne!(c.leader().await, gone);
    c.start_one(gone).await;
    c.caught_up(gone).await;
    c.transfer(gone as u64 + 1).await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_cost_the_majority_is_refused() {
    let mut c = Cluster::start().await;
    c.write("k").await;
    let leader = c.leader().await;
    let [me, a, b, down] = [0, 1, 2, 3].map(|i| ((leader + i) % SERVERS) as u64 + 1);
    for bad in [&[][..], &[me, me], &[me, 9]] {
        assert_eq!(c.change(bad).await.unwrap_err().kind, ErrorKind::Invalid);
    }
    eventually(async || {
        let elsewhere = (c.leader().await + 1) % SERVERS;
        // (It is no change, if that server leads by now.)
        let refused = c.ask(elsewhere, &[1, 2, 3, 4]).await.err()?;
        (refused.kind == ErrorKind::NotLeader).then_some(())
    })
    .await;
    // A server that is down can be removed, but it cannot be added.
    c.stop_one(down as usize - 1).await;
    let mut rest = vec![me, a, b];
    rest.sort_unstable();
    assert_eq!(c.change(&rest).await.unwrap(), rest);
    c.settled(&rest).await;
    let refused = c.change(&[me, a, down]).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Invalid && refused.message.contains("does not answer"), "{refused}");
    c.settled(&rest).await;
    // Nor can it be counted on where it would be half of the voters.
    c.start_one(down as usize - 1).await;
    c.change(&[1, 2, 3, 4]).await.unwrap();
    c.stop_one(down as usize - 1).await;
    let refused = c.change(&[me, down]).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Invalid && refused.message.contains("majority"), "{refused}");
    c.settled(&[1, 2, 3, 4]).await;
    c.write("goes on").await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_change_at_a_time() {
    let mut c = Cluster::start().await;
    c.write("k").await;
    let (changed, refused) = eventually(async || {
        let leader = c.leader().await;
        let others: Vec<u64> = without(&[leader as u64 + 1]);
        // The first has to wait for its quorum or Raft; the second comes meanwhile.
        let (one, two) = (without(&others[..1]), without(&others[1..2]));
        match tokio::join!(c.ask(leader, &one), c.ask(leader, &two)) {
            (Ok(changed), Err(refused)) | (Err(refused), Ok(changed))
                if refused.message.contains("under way") =>
            {
                Some((changed, refused))
            }
            // On a busy machine one may be over before the other comes, or the leader is lost: from the start.
            _ => {
                c.change(&[1, 2, 3, 4]).await.unwrap();
                None
            }
        }
    })
    .await;
    assert_eq!(refused.kind, ErrorKind::Retry, "{refused}");
    c.settled(&changed).await;
    // The same again is no change.
    let now = c.partition(c.leader().await)["voters"].clone();
    let now: Vec<u64> = serde_json::from_value(now).unwrap();
    assert_eq!(c.change(&now).await.unwrap(), now);
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_voter_alone_and_three_again() {
    let mut c = Cluster::start().await;
    c.write("four").await;
    let alone = c.leader().await as u64 + 1;
    assert_eq!(c.change(&[alone]).await.unwrap(), [alone]);
    c.settled(&[alone]).await;
    c.write("one").await;
    let mut three = vec![alone, alone % 4 + 1, (alone + 1) % 4 + 1];
    three.sort_unstable();
    c.change(&three).await.unwrap();
    c.settled(&three).await;
    c.write("three").await;
    // The new ones have it all.
    c.stop_one(alone as usize - 1).await;
    c.write("two of three").await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_new_in_the_configuration_becomes_a_voter() {
    let mut c = Cluster::found(3).await;
    c.write("three").await;
    c.settled(&[1, 2, 3]).await;
    for i in 0..3 {
        c.stop_one(i).await;
    }
    for i in 0..SERVERS {
        c.start_one(i).await;
    }
    c.settled(&[1, 2, 3]).await;
    c.write("without it").await;
    assert_eq!(c.partition(3)["voters"], serde_json::json!([]), "it founds no group of its own");
    assert_eq!(c.change(&[1, 2, 3, 4]).await.unwrap(), [1, 2, 3, 4]);
    c.settled(&[1, 2, 3, 4]).await;
    c.change(&[2, 3, 4]).await.unwrap();
    c.settled(&[2, 3, 4]).await;
    c.stop_one(0).await;
    c.write("with it").await;
    c.caught_up(3).await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_in_the_middle_leaves_one_set_of_voters() {
    let mut c = Cluster::start().await;
    c.write("before").await;
    for round in 0..8 {
        c.change(&[1, 2, 3, 4]).await.unwrap();
        let leader = c.leader().await;
        // Out goes the leader in one round, somebody else in the next.
        let rest = without(&[(leader as u64 + round % 2) % SERVERS as u64 + 1]);
        let before = c.partition(leader)["last_index"].as_u64();
        let asked = c.ask(leader, &rest);
        let begun = async {
            // As soon as something of it is in the log, or a little later.
            while c.partition(leader)["last_index"].as_u64() == before {
                tokio::task::yield_now().await;
            }
            for _ in 0..round * 10 {
                tokio::task::yield_now().await;
            }
        };
        // The answer is lost, if it was not given yet.
        tokio::select! {
            biased;
            () = begun => {}
            _ = asked => {}
        }
        c.stop_one(leader).await;
        c.write(&format!("round {round}")).await;
        // Made or not made, but not half.
        eventually(async || {
            let partition = c.partition(c.leader().await);
            let is = |voters: &[u64]| partition["voters"] == serde_json::json!(voters);
            (partition["learners"] == serde_json::json!([]) && (is(&rest) || is(&[1, 2, 3, 4]))).then_some(())
        })
        .await;
        c.start_one(leader).await;
        c.check().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whom_an_operator_has_left_out_is_not_let_in_by_itself_whoever_leads() {
    let mut c = Cluster::start().await;
    c.write("before").await;
    let out = (c.leader().await + 1) % SERVERS;
    let rest = without(&[out as u64 + 1]);
    c.change(&rest).await.unwrap();
    c.settled(&rest).await;
    c.stop_one(out).await;
    // Under this leader, and under the next one, which was told nothing.
    for turn in 0..2 {
        let leader = c.leader().await;
        c.wish(out as u64 + 1, 77).await;
        // The leader has taken a turn since, and nothing is under way.
        c.write(&format!("turn {turn}")).await;
        assert_eq!(c.change(&rest).await.unwrap(), rest);
        let leads = c.leader().await;
        assert_eq!(c.partition(leads)["learners"], serde_json::json!([]));
        if turn == 0 {
            let next = rest.iter().find(|id| **id != leader as u64 + 1).unwrap();
            c.transfer(*next).await;
        }
    }
    // Named again, it is one of them.
    c.start_one(out).await;
    c.change(&[1, 2, 3, 4]).await.unwrap();
    c.settled(&[1, 2, 3, 4]).await;
    c.caught_up(out).await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_no_other_server_asks_in_vain_and_is_in_nobodys_way() {
    let mut c = Cluster::found(3).await;
    c.write("three").await;
    c.settled(&[1, 2, 3]).await;
    for i in 0..3 {
        c.stop_one(i).await;
    }
    for i in 0..SERVERS {
        c.start_one(i).await;
    }
    c.settled(&[1, 2, 3]).await;
    let leader = c.leader().await as u64 + 1;
    let fourth = c.wish(0, 0).await[3];
    eventually(async || {
        for nobody in [0, leader] {
            c.wish(nobody, 77).await;
        }
        c.wish(4, fourth).await;
        (c.partition(c.leader().await)["voters"] == serde_json::json!([1, 2, 3, 4])).then_some(())
    })
    .await;
    c.check().await;
}
