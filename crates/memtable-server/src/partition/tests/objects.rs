//! Objects: headers that count what a batch does to elements, and plain operations that meet them.

use sextant_common::configuration::Feature;
use sextant_common::expiry::Tick;
use sextant_common::marks::{Kind, Marks};
use sextant_common::object::{Bounds, Cut, Header, Tag, element_key, sortable};
use sextant_common::operation::Misfit;

use super::*;

fn count(k: &str, version: u64, creates: bool, counted: u32) -> WriteOp {
    let count = Update::Count { kind: Kind::Hash, version, creates, counted };
    update(k, count)
}

fn update(k: &str, update: Update) -> WriteOp {
    WriteOp { effect: Effect::Update(update), lifetime: Lifetime::Kept, ..op(k, None, Condition::None) }
}

/// That no SSTable has it.
fn absent(n: &Node, op: WriteOp) -> WriteOp {
    WriteOp { base: Some(Base::absent(ManifestVersion(n.version()))), ..op }
}

/// A put that asks whether there was something.
fn met(n: &Node, k: &str) -> WriteOp {
    absent(n, WriteOp { lifetime: Lifetime::Kept, ..put(k, "v") })
}

fn misfit(verdict: &Verdict) -> Option<Misfit> {
    let Verdict::Unchanged { ok: false, results } = verdict else { return None };
    results.iter().find_map(|result| match result.told.as_deref() {
        Some(Told::Misfit(misfit)) => Some(*misfit),
        _ => None,
    })
}

/// What a batch leaves of the header, which is its last operation.
fn header(n: &mut Node, ops: Vec<WriteOp>) -> Option<(Header, Marks)> {
    let group = n.evaluate(ops).0.expect("it changes something");
    let write = group.tables[0].writes.iter().find(|write| write.key == "h").cloned();
    n.command(&Command::Group(group));
    let write = write.expect("the header is written");
    write.value.map(|value| (Header::decode(&value).unwrap(), write.marks))
}

#[test]
fn a_header_counts_the_elements_of_its_batch_and_goes_with_the_last_one() {
    let mut n = Node::new();
    let ops = vec![met(&n, "f"), met(&n, "g"), met(&n, "f"), absent(&n, count("h", 7, true, 3))];
    let (made, marks) = header(&mut n, ops).unwrap();
    assert_eq!((made, marks.kind()), (Header::new(7, 2), Kind::Hash));
    let ops = vec![put("uncounted", "x"), met(&n, "f"), met(&n, "i"), count("h", 7, false, 2)];
    assert_eq!(header(&mut n, ops).unwrap().0.count, 3);
    let gone = |k: &str| WriteOp { skip_on_failure: true, ..op(k, None, Condition::Present) };
    let ops = vec![gone("f"), absent(&n, gone("nosuch")), gone("g"), count("h", 7, false, 3)];
    assert_eq!(header(&mut n, ops).unwrap().0.count, 1);
    let ops = vec![absent(&n, gone("nosuch")), count("h", 7, false, 1)];
    assert!(n.evaluate(ops).0.is_none(), "nothing has changed: nor has the header");
    assert!(header(&mut n, vec![gone("i"), count("h", 7, false, 1)]).is_none());
}

#[test]
fn an_object_of_another_version_or_kind_is_not_written() {
    let mut n = Node::new();
    let other = |n: &Node, op: WriteOp| misfit(&n.evaluate(vec![met(n, "f"), op]).1);
    assert_eq!(other(&n, absent(&n, count("h", 7, false, 1))), Some(Misfit::OtherObject), "none is there");
    let ops = vec![met(&n, "f"), absent(&n, count("h", 7, true, 1))];
    header(&mut n, ops);
    assert_eq!(other(&n, count("h", 8, false, 1)), Some(Misfit::OtherObject));
    assert_eq!(other(&n, count("h", 8, true, 1)), Some(Misfit::OtherObject), "somebody else has made one");
    let set = Update::Count { kind: Kind::Set, version: 7, creates: false, counted: 1 };
    assert_eq!(other(&n, update("h", set)), Some(Misfit::OtherObject));
    n.write(put("h", "plain"));
    assert_eq!(other(&n, count("h", 7, false, 1)), Some(Misfit::OtherObject));
}

#[test]
fn what_wants_a_value_does_not_go_with_an_object() {
    let mut n = Node::new();
    let ops = vec![met(&n, "f"), absent(&n, count("h", 7, true, 1))];
    header(&mut n, ops);
    for frozen in [false, true] {
        if frozen {
            n.freeze(T);
        }
        let told = |op| misfit(&n.evaluate(vec![op]).1);
        for wants in [
            update("h", Update::Increment(1)),
            update("h", Update::Append("x".into())),
            WriteOp { returns: Returns::Before, ..put("h", "x") },
            WriteOp {
                returns: Returns::Before,
                skip_on_failure: true,
                ..op("h", Some("x"), Condition::Absent)
            },
            WriteOp { returns: Returns::Before, ..op("h", None, Condition::Present) },
        ] {
            assert_eq!(told(wants.clone()), Some(Misfit::WrongKind), "{wants:?}");
        }
        let is_value = |value: &str| op("h", Some("x"), Condition::ValueEquals(key(value)));
        let bytes = String::from_utf8_lossy(&Header::new(7, 1).encode()).into_owned();
        let applies = |op| matches!(n.evaluate(vec![op]).1, Verdict::Applied(_));
        assert!(!applies(is_value(&bytes)), "a header is no value");
        assert!(applies(op("h", Some("x"), Condition::Present)));
    }
    let touch = WriteOp { lifetime: Lifetime::Until(Tick(1 << 50)), ..update("h", Update::Touch) };
    let group = n.evaluate(vec![touch]).0.unwrap();
    let marks = group.tables[0].writes[0].marks;
    assert_eq!((marks.kind(), marks.expires_at()), (Kind::Hash, Some(Tick(1 << 50))));
    n.write(put("h", "plain"));
    assert!(n.evaluate(vec![update("h", Update::Append("x".into()))]).0.is_some(), "it is plain again");
}

#[test]
fn a_header_of_an_sstable_is_met_by_what_the_p_node_found() {
    let n = Node::new();
    let base = Base {
        present: true,
        seq: Seq(1),
        marks: Marks::new(Kind::Hash, Some(Tick(1 << 50))),
        ..Base::absent(ManifestVersion(n.version()))
    };
    let of_base =
        |op: WriteOp| WriteOp { base: Some(base), base_value: Some(Header::new(7, 5).encode()), ..op };
    let group = n.evaluate(vec![met(&n, "f"), of_base(count("h", 7, false, 1))]).0.unwrap();
    let write = &group.tables[0].writes[1];
    assert_eq!(Header::decode(write.value.as_ref().unwrap()), Some(Header::new(7, 6)));
    assert_eq!(write.marks, base.marks, "its lifetime stays");
    let append = of_base(update("h", Update::Append("x".into())));
    assert_eq!(misfit(&n.evaluate(vec![append]).1), Some(Misfit::WrongKind));
}

/// A member with its place in the order of scores, and the header that counts it.
fn scored(n: &Node, score: f64, member: &str, creates: bool) -> Vec<WriteOp> {
    let named = |tag, name: &[u8], value: &[u8]| WriteOp {
        key: element_key(b"z", 7, tag, name),
        effect: Effect::Put(Bytes::copy_from_slice(value)),
        lifetime: Lifetime::Kept,
        ..put("", "")
    };
    let place = [&sortable(score)[..], member.as_bytes()].concat();
    let count = Update::Count { kind: Kind::SortedSet, version: 7, creates, counted: 1 };
    vec![
        absent(n, named(Tag::ByScore, &place, b"")),
        absent(n, named(Tag::Score, member.as_bytes(), &score.to_le_bytes())),
        absent(n, update("z", count)),
    ]
}

fn bounded(low: f64, high: f64) -> Bounds {
    Bounds { low: Cut::of(low, b"m"), high: Some(Cut::of(high, b"m")) }
}

/// The header of the sorted set after a batch.
fn leaves(n: &mut Node, ops: Vec<WriteOp>) -> Header {
    let group = n.evaluate(ops).0.expect("it changes something");
    let written = group.tables.iter().flat_map(|table| &table.writes).find(|write| write.key == "z");
    let header = Header::decode(written.and_then(|write| write.value.as_ref()).expect("a header")).unwrap();
    n.command(&Command::Group(group));
    header
}

fn allow_bounds(n: &mut Node) {
    let founding = Configuration::founding(&sextant_environment::config::LeaseConfig::default(), 1 << 20);
    let configuration = Configuration { format: Feature::Bounds.format(), ..founding };
    n.command(&Command::Configure(Configure { term: 1, configuration }));
    n.commit();
}

fn puts_header(bounds: Bounds) -> WriteOp {
    let value = Header { bounds, ..Header::new(7, 5) }.encode();
    WriteOp { lifetime: Lifetime::Unlimited, ..update("z", Update::Header { kind: Kind::SortedSet, value }) }
}

#[test]
fn bounds_of_a_sorted_set_get_as_wide_as_what_is_added() {
    let mut n = Node::new();
    allow_bounds(&mut n);
    let ops = scored(&n, 1.0, "m", true);
    assert_eq!(leaves(&mut n, ops).bounds, Bounds::default(), "nobody has said any");
    assert_eq!(leaves(&mut n, vec![puts_header(bounded(1.0, 5.0))]).bounds, bounded(1.0, 5.0));
    let ops = scored(&n, 3.0, "within", false);
    assert_eq!(leaves(&mut n, ops), Header { bounds: bounded(1.0, 5.0), ..Header::new(7, 6) });
    let ops = scored(&n, -2.0, "m", false);
    assert_eq!(leaves(&mut n, ops).bounds, bounded(-2.0, 5.0));
    n.freeze(T);
    let ops = scored(&n, 9.0, "m", false);
    assert_eq!(leaves(&mut n, ops).bounds, bounded(-2.0, 9.0), "also over a frozen one");
    // Several in one batch, one of which does nothing.
    let ops = vec![
        scored(&n, 10.0, "m", false)[1].clone(),
        WriteOp {
            condition: Condition::SeqEquals(Seq(999)),
            skip_on_failure: true,
            ..scored(&n, 99.0, "x", false)[1].clone()
        },
        scored(&n, -10.0, "m2", false)[1].clone(),
        update("z", Update::Count { kind: Kind::SortedSet, version: 7, creates: false, counted: 3 }),
    ];
    let low = Cut::of(-10.0, b"m2");
    assert_eq!(leaves(&mut n, ops).bounds, Bounds { low, ..bounded(0.0, 10.0) });
}

#[test]
fn only_who_says_what_was_written_keeps_bounds_and_only_where_all_can_read_them() {
    let mut n = Node::new();
    let first = absent(&n, puts_header(bounded(1.0, 5.0)));
    assert_eq!(leaves(&mut n, vec![first]), Header::new(7, 5), "the format is older");
    let over = WriteOp { lifetime: Lifetime::Milliseconds(0), ..update("z", Update::Touch) };
    let group = n.evaluate(vec![over]).0.expect("it removes it");
    assert_eq!(group.tables[0].writes[0].value, None, "what would be gone already goes at once");
    allow_bounds(&mut n);
    leaves(&mut n, vec![puts_header(bounded(1.0, 5.0))]);
    let touch = |lifetime| WriteOp { lifetime, ..update("z", Update::Touch) };
    let expires = touch(Lifetime::Until(Tick(1 << 50)));
    assert_eq!(leaves(&mut n, vec![expires]).bounds, bounded(1.0, 5.0));
    assert_eq!(leaves(&mut n, vec![touch(Lifetime::Kept)]).bounds, Bounds::default(), "as an import does");
}
