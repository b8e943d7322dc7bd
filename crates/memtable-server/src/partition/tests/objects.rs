//! Objects: headers that count what a batch does to elements, and plain operations that meet them.

use sextant_common::expiry::Tick;
use sextant_common::marks::{Kind, Marks};
use sextant_common::object::Header;
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
