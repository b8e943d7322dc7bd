use std::collections::BTreeMap;

use futures::StreamExt;
use sextant_common::ErrorKind;
use sextant_common::expiry::Tick;
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{Generations, HASH_WEIGHT_BYTES, Origin, TableOptions, large};
use sextant_environment::env::error_of;

use super::transfer::copy_of;
use super::*;
use crate::testing::sst_id;

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_is_not_as_announced_leaves_nothing() {
    let mut node = Node::start().await;
    let good = messages(sst_id(1), &model(120, 1));
    let finish = |record_count| IngestRequest { finish: true, record_count, ..IngestRequest::default() };
    let mut unsorted = good.clone();
    unsorted.swap(1, 2);
    let mut twice = good.clone();
    twice.insert(2, twice[1].clone());
    let mut wrong_count = good.clone();
    *wrong_count.last_mut().unwrap() = finish(119);
    let no_header = good[1..].to_vec();
    let two_headers = [&good[..1], &good].concat();
    let no_finish = good[..good.len() - 1].to_vec();
    let empty = vec![header(sst_id(1)), finish(0)];
    let mut bad_id = good.clone();
    bad_id[0].header.as_mut().unwrap().id = Bytes::from_static(b"x");
    for bad in [unsorted, twice, wrong_count, no_header, two_headers, no_finish, empty, bad_id, Vec::new()] {
        let error = send(&mut node.client, bad).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        assert!(node.files().is_empty() && node.inventory().await.is_empty());
    }
    send(&mut node.client, good).await.unwrap();
    node.assert_holds(sst_id(1), &model(120, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_has_one_content_for_ever() {
    let mut node = Node::start().await;
    let meta = node.ingest(sst_id(1), &model(100, 1)).await.unwrap();
    assert_eq!(node.ingest(sst_id(1), &model(100, 1)).await.unwrap(), meta);
    let error = node.ingest(sst_id(1), &model(101, 1)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("other contents"), "{error}");
    assert_eq!(node.files().len(), 1);
    node.assert_holds(sst_id(1), &model(100, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_breaks_off_leaves_nothing() {
    let mut node = Node::start().await;
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let mut client = node.client.clone();
    let call =
        tokio::spawn(
            async move { client.ingest(tokio_stream::wrappers::ReceiverStream::new(receiver)).await },
        );
    for message in &messages(sst_id(1), &model(120, 1))[..2] {
        sender.send(message.clone()).await.unwrap();
    }
    while node.files().is_empty() {
        tokio::task::yield_now().await;
    }
    call.abort();
    drop(sender);
    while !node.files().is_empty() {
        tokio::task::yield_now().await;
    }
    node.ingest(sst_id(1), &model(120, 1)).await.unwrap();
}

fn compaction(inputs: &[SstId], output: SstId, drop_tombstones: bool) -> CompactRequest {
    CompactRequest {
        inputs: inputs.iter().map(|id| sst_id_to_wire(*id)).collect(),
        output: sst_id_to_wire(output),
        table: 9,
        options: Some((&options(true)).into()),
        drop_tombstones,
        origin: None,
        expired_by: 0,
        ..CompactRequest::default()
    }
}

impl Node {
    async fn compact(&mut self, request: CompactRequest) -> Result<Option<SstMeta>> {
        Ok(self.compact_into(request).await?.pop())
    }

    async fn compact_into(&mut self, request: CompactRequest) -> Result<Vec<SstMeta>> {
        let reply = self.client.compact(request).await.map_err(error_of)?.into_inner();
        reply.meta.into_iter().chain(reply.more).map(TryInto::try_into).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_keeps_the_newest_record_of_each_key() {
    let mut node = Node::with(FaultyVfs::new(1), |c| c.compaction_bytes_per_s = 1 << 30).await;
    let (old, newer, newest) = (model(5000, 1), model(300, 10_000), model(20, 20_000));
    for (i, model) in [&old, &newer, &newest].into_iter().enumerate() {
        node.ingest(sst_id(i as u32), model).await.unwrap();
    }
    let mut merged = old;
    merged.extend(newer);
    merged.extend(newest);
    let inputs = [sst_id(2), sst_id(1), sst_id(0)];
    let meta = node.compact(compaction(&inputs, sst_id(10), false)).await.unwrap().unwrap();
    assert_eq!(meta.records, 5000);
    let without: Model = merged.iter().filter(|(_, r)| !r.2).map(|(k, r)| (k.clone(), r.clone())).collect();
    let meta = node.compact(compaction(&inputs, sst_id(11), true)).await.unwrap().unwrap();
    assert_eq!((meta.records as usize, meta.tombstones), (without.len(), 0));
    // The answer means durable.
    node.crash().await;
    node.assert_holds(sst_id(10), &merged).await;
    node.assert_holds(sst_id(11), &without).await;
    // Asked again, it is the same table.
    let again = node.compact(compaction(&inputs, sst_id(11), true)).await.unwrap().unwrap();
    assert_eq!(again.checksum, meta.checksum);
    // Elsewhere too: replicas may compact on their own.
    let mut other = Node::start().await;
    other.ingest(sst_id(5), &without).await.unwrap();
    let elsewhere = other.compact(compaction(&[sst_id(5)], sst_id(11), true)).await.unwrap().unwrap();
    assert_eq!(elsewhere.checksum, meta.checksum);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_of_tombstones_writes_nothing() {
    let mut node = Node::start().await;
    let dead: Model = (0..50).map(|i| (key(i), (Vec::new(), i, true))).collect();
    node.ingest(sst_id(1), &dead).await.unwrap();
    assert_eq!(node.compact(compaction(&[sst_id(1)], sst_id(2), true)).await.unwrap(), None);
    assert_eq!(node.files().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_cannot_be_right_is_refused() {
    let mut node = Node::start().await;
    let of = |seq| BTreeMap::from([(key(1), (b"v".to_vec(), seq, false))]);
    node.ingest(sst_id(1), &of(1)).await.unwrap();
    node.ingest(sst_id(2), &of(2)).await.unwrap();
    let missing = node.compact(compaction(&[sst_id(1), sst_id(7)], sst_id(9), false)).await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::Unavailable);
    assert!(missing.message.contains(&sst_id(7).to_string()), "{missing}");
    let oldest_first = compaction(&[sst_id(1), sst_id(2)], sst_id(9), false);
    let into_itself = compaction(&[sst_id(1)], sst_id(1), false);
    let nothing = compaction(&[], sst_id(9), false);
    let twice = compaction(&[sst_id(1), sst_id(1)], sst_id(9), false);
    let foreign = CompactRequest { table: 8, ..compaction(&[sst_id(1)], sst_id(9), false) };
    for bad in [oldest_first, into_itself, nothing, twice, foreign] {
        let error = node.compact(bad).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
    }
    assert_eq!(node.files().len(), 2);
}

/// Into as many tables as there are ids.
fn cut(inputs: &[SstId], outputs: std::ops::Range<u32>, range: &KeyRange, cuts: &[u64]) -> CompactRequest {
    let origin = Origin { range: range.clone(), ..origin(7, 1, 4) };
    let mut outputs = outputs.map(|counter| sst_id_to_wire(sst_id(counter)));
    let first = outputs.next().unwrap();
    CompactRequest {
        origin: Some((&origin).into()),
        output: first,
        more_outputs: outputs.collect(),
        cuts: cuts.iter().map(|i| Bytes::from(key(*i))).collect(),
        ..compaction(inputs, sst_id(0), true)
    }
}

fn ranges(outputs: &[SstMeta]) -> Vec<KeyRange> {
    outputs.iter().map(|meta| meta.range.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_share_the_range_at_cuts_with_records_on_both_sides() {
    let mut node = Node::start().await;
    let live = |keys: std::ops::Range<u64>| -> Model {
        keys.map(|i| (key(i), (vec![i as u8; 50], i + 1, false))).collect()
    };
    let mut all = live(0..10);
    all.extend(live(40..50));
    node.ingest(sst_id(1), &all).await.unwrap();
    let range = KeyRange::new(key(2), key(48));
    let outputs = node.compact_into(cut(&[sst_id(1)], 10..20, &range, &[5, 20, 30, 40])).await.unwrap();
    let bounds = [2, 5, 40, 48].map(key);
    let expected: Vec<KeyRange> =
        bounds.windows(2).map(|pair| KeyRange::new(pair[0].clone(), pair[1].clone())).collect();
    assert_eq!(ranges(&outputs), expected, "nothing is between 10 and 40");
    assert_eq!(outputs.iter().map(|meta| meta.records).collect::<Vec<_>>(), [3, 5, 8]);
    assert!(outputs.iter().all(|meta| meta.generations == Generations::new(1, 4)));
    node.crash().await;
    for (output, range) in outputs.iter().zip(&expected) {
        let of_range = all.iter().filter(|(k, _)| range.contains(k));
        node.assert_holds(output.id, &of_range.map(|(k, r)| (k.clone(), r.clone())).collect()).await;
    }
    // An input answers for no more than is asked of it, and what is left after it is as before.
    let again = cut(&[outputs[1].id], 30..31, &KeyRange::new(key(6), key(8)), &[]);
    let output = node.compact(again).await.unwrap().unwrap();
    assert_eq!((output.records, output.range), (2, KeyRange::new(key(6), key(8))));
    // With too few ids the last one takes the rest.
    let few = node.compact_into(cut(&[sst_id(1)], 40..42, &range, &[5, 20, 30, 40])).await.unwrap();
    assert_eq!(ranges(&few), [KeyRange::new(key(2), key(5)), KeyRange::new(key(5), key(48))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_are_cut_when_they_are_large_enough() {
    let mut node = Node::start().await;
    let large: Model = (0..2000).map(|i| (key(i), (vec![i as u8; 100], i + 1, false))).collect();
    node.ingest(sst_id(1), &large).await.unwrap();
    let request = CompactRequest { output_bytes: 5_000, ..cut(&[sst_id(1)], 10..60, &KeyRange::all(), &[]) };
    let outputs = node.compact_into(request.clone()).await.unwrap();
    assert!(outputs.len() > 2 && KeyRange::all().is_made_of(&ranges(&outputs)), "{outputs:?}");
    assert!(outputs.iter().all(|meta| meta.file_bytes < 15_000));
    assert_eq!(outputs.iter().map(|meta| meta.records).sum::<u64>(), 2000);
    // The same on another server.
    let mut other = Node::start().await;
    other.ingest(sst_id(1), &large).await.unwrap();
    assert_eq!(other.compact_into(request.clone()).await.unwrap(), outputs);
    // A tombstone for all, if nothing is left.
    let dead: Model = (0..50).map(|i| (key(i), (Vec::new(), i + 1, true))).collect();
    node.ingest(sst_id(2), &dead).await.unwrap();
    let inputs = vec![sst_id_to_wire(sst_id(2))];
    let more_outputs = (80..90).map(|counter| sst_id_to_wire(sst_id(counter))).collect();
    let output = sst_id_to_wire(sst_id(79));
    let request = CompactRequest { inputs, output, more_outputs, ..request };
    let outputs = node.compact_into(request).await.unwrap();
    assert_eq!((ranges(&outputs), outputs[0].tombstones), (vec![KeyRange::all()], 1));
}

/// So many records of one size.
fn sized(keys: std::ops::Range<u64>, value_bytes: usize) -> Model {
    keys.map(|i| (key(i), (vec![7; value_bytes], i + 1, false))).collect()
}

/// The outputs, by what the room for a compaction that cuts at `output_bytes` is taken for.
fn assert_hashes_have_room(outputs: &[SstMeta], output_bytes: u64, hashes_a_record: u64) {
    let most = large(output_bytes) / HASH_WEIGHT_BYTES + hashes_a_record;
    let records: Vec<u64> = outputs.iter().map(|meta| meta.records).collect();
    assert!(records.iter().all(|records| records * hashes_a_record <= most), "{most}: {records:?}");
    assert!(KeyRange::all().is_made_of(&ranges(outputs)));
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_of_tiny_records_are_cut_before_their_hashes_need_more_memory_than_was_taken() {
    const OUTPUT_BYTES: u64 = 6_400;
    let mut node = Node::start().await;
    // Large records, and then tiny ones.
    let mut mixed = sized(0..100, 2_000);
    mixed.extend(sized(100..3_000, 0));
    node.ingest(sst_id(1), &mixed).await.unwrap();
    let inputs = [sst_id(1)];
    let request =
        CompactRequest { output_bytes: OUTPUT_BYTES, ..cut(&inputs, 100..200, &KeyRange::all(), &[]) };
    let outputs = node.compact_into(request.clone()).await.unwrap();
    assert_hashes_have_room(&outputs, OUTPUT_BYTES, 1);
    assert_eq!(outputs.iter().map(|meta| meta.records).sum::<u64>(), 3_000);
    assert!(outputs.len() <= 40, "nor sooner: {}", outputs.len());
    // Each key is a prefix of its own as well.
    let with_prefixes = TableOptions { filter_prefix: 8, ..options(true) };
    let more_outputs = (301..400).map(|counter| sst_id_to_wire(sst_id(counter))).collect();
    let output = sst_id_to_wire(sst_id(300));
    let request = CompactRequest { options: Some((&with_prefixes).into()), output, more_outputs, ..request };
    let outputs = node.compact_into(request).await.unwrap();
    assert_hashes_have_room(&outputs, OUTPUT_BYTES, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_passed_says_little_of_what_is_to_come_and_no_output_has_more_hashes_for_that() {
    const OUTPUT_BYTES: u64 = 6_400;
    let mut node = Node::start().await;
    node.ingest(sst_id(1), &sized(0..450, 0)).await.unwrap();
    // The first keys again and again: as if there were little left of any.
    for counter in 2..=40 {
        let again = sized(0..50, 0).into_iter().map(|(k, (v, seq, dead))| (k, (v, seq + 10_000, dead)));
        node.ingest(sst_id(counter), &again.collect()).await.unwrap();
    }
    let inputs: Vec<SstId> = (1..=40).rev().map(sst_id).collect();
    let request =
        CompactRequest { output_bytes: OUTPUT_BYTES, ..cut(&inputs, 100..200, &KeyRange::all(), &[]) };
    let outputs = node.compact_into(request).await.unwrap();
    assert_hashes_have_room(&outputs, OUTPUT_BYTES, 1);
    assert_eq!(outputs.iter().map(|meta| meta.records).sum::<u64>(), 450);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_longer_compressed_leave_the_ids_that_hashes_need() {
    const OUTPUT_BYTES: u64 = 6_400;
    let mut node = Node::start().await;
    // A hundred times as long when it is not compressed; then tiny ones.
    let mut compressed = sized(0..200, 2_000);
    compressed.extend(sized(200..2_000, 0));
    let meta = node.ingest(sst_id(1), &compressed).await.unwrap();
    let ids = (meta.file_bytes + meta.records * HASH_WEIGHT_BYTES) / OUTPUT_BYTES + 2;
    let request = CompactRequest {
        output_bytes: OUTPUT_BYTES,
        options: Some((&options(false)).into()),
        ..cut(&[sst_id(1)], 100..100 + ids as u32, &KeyRange::all(), &[])
    };
    let outputs = node.compact_into(request).await.unwrap();
    assert_hashes_have_room(&outputs, OUTPUT_BYTES, 1);
    assert!(
        outputs.iter().any(|meta| meta.file_bytes > 10 * OUTPUT_BYTES),
        "one has what is left of the bytes"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn with_too_few_ids_all_outputs_share_the_hashes() {
    const OUTPUT_BYTES: u64 = 6_400;
    let mut node = Node::start().await;
    // Ten outputs by their hashes, three by their bytes: as leaders of older versions count.
    node.ingest(sst_id(1), &sized(0..1_000, 0)).await.unwrap();
    let request =
        CompactRequest { output_bytes: OUTPUT_BYTES, ..cut(&[sst_id(1)], 100..105, &KeyRange::all(), &[]) };
    let outputs = node.compact_into(request).await.unwrap();
    assert!(KeyRange::all().is_made_of(&ranges(&outputs)));
    let records: Vec<u64> = outputs.iter().map(|meta| meta.records).collect();
    assert_eq!(records, [200; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cuts_that_do_not_rise_or_lie_elsewhere_are_refused() {
    let mut node = Node::start().await;
    node.ingest(sst_id(1), &model(100, 1)).await.unwrap();
    let range = KeyRange::new(key(2), key(48));
    let without_origin = CompactRequest { origin: None, ..cut(&[sst_id(1)], 10..12, &range, &[5]) };
    for bad in [
        cut(&[sst_id(1)], 10..12, &range, &[2]),
        cut(&[sst_id(1)], 10..12, &range, &[48]),
        cut(&[sst_id(1)], 10..14, &range, &[5, 5]),
        cut(&[sst_id(1)], 10..14, &range, &[6, 5]),
        cut(&[sst_id(1)], 0..3, &range, &[5]),
        cut(&[sst_id(1)], 10..300, &range, &[5]),
        without_origin,
    ] {
        assert_eq!(node.compact_into(bad).await.unwrap_err().kind, ErrorKind::Invalid);
    }
    assert_eq!(node.files().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_nobody_waits_for_is_given_up() {
    // At a byte a second it would take a month.
    let mut node =
        Node::with(FaultyVfs::new(1), |c| (c.compaction_bytes_per_s, c.compactions_max) = (1, 1)).await;
    let large: Model = (0..30_000).map(|i| (key(i), (vec![i as u8; 300], i, false))).collect();
    node.ingest(sst_id(1), &large).await.unwrap();
    for _ in 0..2 {
        let mut client = node.client.clone();
        let call =
            tokio::spawn(async move { client.compact(compaction(&[sst_id(1)], sst_id(2), false)).await });
        while node.files().len() < 2 {
            tokio::task::yield_now().await;
        }
        call.abort();
        while node.files().len() > 1 {
            tokio::task::yield_now().await;
        }
    }
    // The same when the server stops.
    let mut client = node.client.clone();
    let call = tokio::spawn(async move { client.compact(compaction(&[sst_id(1)], sst_id(2), false)).await });
    while node.files().len() < 2 {
        tokio::task::yield_now().await;
    }
    node.restart().await;
    assert!(call.await.unwrap().is_err());
    assert_eq!(node.inventory().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_copies_what_it_lacks_when_it_has_its_turn() {
    let mut from = Node::start().await;
    let (one, two) = (model(300, 1), model(200, 1000));
    let metas = [from.ingest(sst_id(1), &one).await.unwrap(), from.ingest(sst_id(2), &two).await.unwrap()];
    let mut to =
        Node::with(FaultyVfs::new(1), |c| (c.compaction_bytes_per_s, c.compactions_max) = (1, 1)).await;
    let large: Model = (0..30_000).map(|i| (key(i), (vec![i as u8; 300], i, false))).collect();
    to.ingest(sst_id(8), &large).await.unwrap();
    let mut client = to.client.clone();
    let takes_the_place =
        tokio::spawn(async move { client.compact(compaction(&[sst_id(8)], sst_id(9), false)).await });
    while to.files().len() < 2 {
        tokio::task::yield_now().await;
    }
    let gather: Vec<CopyRequest> = metas.iter().map(|meta| copy_of(meta, &[&from])).collect();
    let request = CompactRequest { gather, ..compaction(&[sst_id(2), sst_id(1)], sst_id(3), false) };
    let mut client = to.client.clone();
    let waiting = request.clone();
    let waits = tokio::spawn(async move { client.compact(waiting).await });
    let stranger = CompactRequest { inputs: vec![sst_id_to_wire(sst_id(1))], ..request };
    assert_eq!(to.compact(stranger).await.unwrap_err().kind, ErrorKind::Invalid, "a copy of no input");
    assert_eq!(to.files().len(), 2, "who waits has copied nothing");
    takes_the_place.abort();
    let reply = waits.await.unwrap().unwrap().into_inner();
    assert_eq!(reply.meta.unwrap().records, 300);
    assert_eq!(to.files().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_on_a_full_disk_or_of_damaged_inputs_leaves_nothing() {
    let mut node = Node::start().await;
    let large: Model = (0..20_000).map(|i| (key(i), (vec![i as u8; 300], i, false))).collect();
    let meta = node.ingest(sst_id(1), &large).await.unwrap();
    node.vfs.set_capacity(Some(node.vfs.used_bytes() + 1000));
    let error = node.compact(compaction(&[sst_id(1)], sst_id(2), false)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Disk, "{error}");
    node.vfs.set_capacity(None);
    node.vfs.flip_bit(&node.path(sst_id(1)), meta.file_bytes / 2, 0).unwrap();
    let error = node.compact(compaction(&[sst_id(1)], sst_id(2), false)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    assert!(node.inventory().await[0].damaged);
    assert_eq!(node.files().len(), 1);
}

fn origin(lineage: u64, first: u64, last: u64) -> Origin {
    Origin { lineage, name: "t".into(), generations: Generations::new(first, last), range: KeyRange::all() }
}

fn messages_of(id: SstId, model: &Model, origin: &Origin) -> Vec<IngestRequest> {
    let mut messages = messages(id, model);
    messages[0].header.as_mut().unwrap().origin = Some(origin.into());
    messages
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_deleted_only_on_behalf_of_its_own_lineage() {
    let mut node = Node::start().await;
    for (counter, lineage) in [(1, 7), (2, 8)] {
        let table = messages_of(sst_id(counter), &model(9, 1), &origin(lineage, 1, 1));
        send(&mut node.client, table).await.unwrap();
    }
    node.ingest(sst_id(3), &model(9, 1)).await.unwrap();
    let ids: Vec<Bytes> = (1..=3).map(|counter| sst_id_to_wire(sst_id(counter))).collect();
    // A group that was founded anew, and so has a lineage of its own, deletes nothing of what was there before it.
    for (lineage, deleted, left) in [(9, 0, 3), (7, 1, 2), (0, 1, 1), (7, 0, 1), (8, 1, 0)] {
        let request = DeleteRequest { ids: ids.clone(), lineage };
        let reply = node.client.delete(request).await.unwrap().into_inner();
        assert_eq!((reply.deleted, reply.refused), (deleted, left), "{lineage}");
        assert_eq!(node.tables_with_a_name(), left as usize);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_deleted_tables_go_one_after_the_other_and_the_rest_with_the_next_start() {
    let mut node = Node::with(FaultyVfs::new(1), |c| c.delete_bytes_per_s = 1 << 20).await;
    let large = model(5_000, 1);
    let ids: Vec<Bytes> = (1..=3).map(|counter| sst_id_to_wire(sst_id(counter))).collect();
    for counter in 1..=3 {
        node.ingest(sst_id(counter), &large).await.unwrap();
    }
    let request = DeleteRequest { ids, lineage: 0 };
    assert_eq!(node.client.delete(request).await.unwrap().into_inner().deleted, 3);
    assert!(node.inventory().await.is_empty() && node.tables_with_a_name() == 0);
    while node.files().len() == 3 {
        tokio::task::yield_now().await;
    }
    // An id again whose file may wait: it is another one.
    let again = node.ingest(sst_id(3), &large).await.unwrap();
    assert_eq!(node.inventory().await.len(), 1);
    node.crash().await;
    assert_eq!(node.files().len(), 1, "what was deleted is erased");
    assert_eq!(node.inventory().await[0].id, sst_id_to_wire(again.id));
    node.assert_holds(sst_id(3), &large).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_never_takes_the_place_of_a_table_of_another_lineage() {
    let (mut one, mut other) = (Node::start().await, Node::start().await);
    let id = sst_id(1);
    send(&mut one.client, messages_of(id, &model(9, 1), &origin(7, 1, 1))).await.unwrap();
    let meta = send(&mut other.client, messages_of(id, &model(20, 1), &origin(8, 1, 1))).await.unwrap();
    let error = one.client.copy(super::transfer::copy_of(&meta, &[&other])).await.unwrap_err();
    assert!(error.message().contains("another lineage"), "{error:?}");
    one.assert_holds(id, &model(9, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holdings_tell_everything_that_a_lost_manifest_said_of_a_table() {
    let mut node = Node::start().await;
    let meta = send(&mut node.client, messages_of(sst_id(1), &model(9, 5), &origin(7, 2, 3))).await.unwrap();
    assert_eq!(meta.generations, Generations::new(2, 3));
    node.ingest(sst_id(2), &model(9, 1)).await.unwrap();
    node.crash().await;
    let holdings = node.client.holdings(HoldingsRequest { partition: 1 }).await.unwrap().into_inner();
    let holdings: Vec<Holding> = holdings.map(|h| h.unwrap()).collect().await;
    let of = |counter| holdings.iter().find(|h| h.id == sst_id_to_wire(sst_id(counter))).unwrap();
    assert_eq!(SstMeta::try_from(of(1).meta.clone().unwrap()).unwrap(), meta);
    assert_eq!(Origin::try_from(of(1).origin.clone().unwrap()).unwrap(), origin(7, 2, 3));
    assert_eq!(TableOptions::try_from(of(1).options.unwrap()).unwrap(), options(true));
    assert!(of(2).origin.is_none(), "format version 1");
    let count = async |node: &mut Node, partition| {
        let reply = node.client.count(CountRequest { partition }).await.unwrap().into_inner();
        (reply.tables, reply.tables_in_all)
    };
    assert_eq!(count(&mut node, 1).await, (2, 2));
    assert_eq!(count(&mut node, 2).await, (0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_with_an_origin_leaves_a_tombstone_rather_than_nothing() {
    let mut node = Node::start().await;
    let dead: Model = (0..50).map(|i| (key(i), (Vec::new(), i + 1, true))).collect();
    node.ingest(sst_id(1), &dead).await.unwrap();
    let request = CompactRequest {
        origin: Some((&origin(7, 1, 4)).into()),
        ..compaction(&[sst_id(1)], sst_id(2), true)
    };
    let meta = node.compact(request).await.unwrap().unwrap();
    assert_eq!((meta.records, meta.tombstones, meta.max_seq), (1, 1, 50));
    assert_eq!(meta.generations, Generations::new(1, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_by_the_time_that_is_named_counts_as_a_tombstone() {
    let mut node = Node::start().await;
    let origin = origin(5, 1, 1);
    let record = |key: &'static [u8], seq: u64, expires_at: u64| ScanRecord {
        key: Bytes::from_static(key),
        value: Bytes::from_static(b"v"),
        seq,
        tombstone: false,
        expires_at,
    };
    let older = vec![record(b"covered", 1, 0), record(b"later", 2, 200), record(b"never", 3, 0)];
    let newer = vec![record(b"covered", 4, 100), record(b"gone", 5, 100)];
    for (id, records) in [(1, older), (2, newer)] {
        let mut begin = header(sst_id(id));
        begin.header.as_mut().unwrap().origin = Some((&origin).into());
        let record_count = records.len() as u64;
        let body = IngestRequest { records, ..IngestRequest::default() };
        let end = IngestRequest { finish: true, record_count, ..IngestRequest::default() };
        send(&mut node.client, vec![begin, body, end]).await.unwrap();
    }
    assert_eq!(node.get(&[sst_id(2), sst_id(1)], b"covered").await.expires_at, 100, "whoever asks judges");
    let inputs = [sst_id(2), sst_id(1)];
    for (output, drop_tombstones) in [(3, false), (4, true)] {
        let request = CompactRequest {
            origin: Some((&origin).into()),
            expired_by: 100,
            ..compaction(&inputs, sst_id(output), drop_tombstones)
        };
        let meta = node.compact(request).await.unwrap().unwrap();
        assert_eq!((meta.expiring.records, meta.expiring.last), (1, Tick(200)));
        let reply = node.scan_all(&[sst_id(output)]).await;
        let records = reply.records.iter().map(|r| (&r.key[..], r.tombstone, r.expires_at));
        let left = [(&b"later"[..], false, 200), (b"never", false, 0)];
        let tombstones = [(&b"covered"[..], true, 0), (b"gone", true, 0)];
        let kept = tombstones.into_iter().filter(|_| !drop_tombstones).chain(left);
        assert!(records.eq(kept), "{:?}", reply.records);
    }
}
