//! Objects of the Redis protocol, and transactions: what makes many records one thing.

macro_rules! objects {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Objects and transactions" {
        "an-object-is-written-as-it-was-read" {
            says:
                "What was made of an object that was read is written on the condition that its header is the same version; \
                 every change of an object writes the header.",
            otherwise: "of two clients that push to a list at once, one loses its element",
            source: "decision 32",
            kept_in: ["crates/resp/src/command/draft/mod.rs"],
            tests: ["nobody_sees_half_of_a_command_or_of_a_transaction"],
            broken_by: ChangesWithoutCondition "changes-without-condition" "What a draft has changed is written whatever is there now." [Operand],
        }
        "what-was-only-read-is-checked-too" {
            says: "A transaction that goes by what it has read takes effect only if all of that is the same version.",
            otherwise: "replies that were never true together",
            source: "decision 31",
            kept_in: ["crates/resp/src/command/draft/mod.rs", "crates/resp/src/command/atomic.rs"],
            tests: ["nobody_sees_half_of_a_command_or_of_a_transaction", "what_is_only_watched_undoes_a_transaction_that_goes_the_long_way"],
        }
        "watched-is-a-version" {
            says: "`EXEC` takes effect only if what is watched has the version that it had.",
            otherwise: "a value that was read and written back takes another client's write",
            source: "decision 31",
            kept_in: ["crates/resp/src/command/atomic.rs"],
            tests: ["a_watched_key_that_has_changed_undoes_the_transaction"],
            broken_by: WatchWithoutVersions "watch-without-versions" "`EXEC` expects no versions." [Operand],
        }
        "the-sequencer-counts" {
            says: "An object's header counts the elements that its batch makes and removes, as the sequencer meets them.",
            otherwise: "`HLEN` is not the number of fields, and an object goes with elements in it, or stays without any",
            source: "decision 32",
            kept_in: ["crates/common/src/operation/update.rs", "crates/resp/src/command/objects/quick.rs"],
            tests: [
                "a_header_counts_the_elements_of_its_batch_and_goes_with_the_last_one",
                "a_field_that_many_increment_over_flushes_loses_none_and_the_count_is_that_of_the_fields",
            ],
            broken_by: CountsOneElement "counts-one-element" "A header counts one of the elements of its batch." [Operand],
        }
        "an-object-is-known-by-its-version" {
            says: "Elements are written only if the object has the version that they have.",
            otherwise: "what was answered is written to an object that is gone",
            source: "decision 32",
            kept_in: ["crates/common/src/operation/update.rs", "crates/memtable-server/src/partition/evaluate.rs"],
            tests: ["an_object_of_another_version_or_kind_is_not_written"],
            broken_by: AnyVersionCounts "any-version-counts" "The sequencer takes any version for that of the object that is there." [Patch("any-version-counts")],
        }
        "a-version-is-given-once" {
            says: "An object that is made gets a random version, which no object had before.",
            otherwise: "elements of one that was deleted or has expired come back",
            source: "decision 32",
            kept_in: ["crates/common/src/object.rs", "crates/resp/src/command/draft/mod.rs", "crates/resp/src/command/objects/quick.rs"],
            tests: ["what_objects_leave_behind_is_swept_and_nothing_else"],
            broken_by: VersionsAgain "versions-again" "Objects that are made by their elements all get the same version." [Operand],
        }
        "what-is-missing-needs-the-header-again" {
            says: "An answer that some element is not there, or of several readings, is given if the header is the same after them.",
            otherwise: "a field of an object that was replaced meanwhile was never missing; a list that was never so",
            source: "decision 32",
            kept_in: ["crates/resp/src/command/draft/mod.rs"],
            tests: ["nobody_sees_half_of_a_command_or_of_a_transaction", "objects_of_more_than_a_page_are_read_and_moved_as_a_whole"],
        }
        "a-remembered-reply-has-its-header" {
            says: "A reply to a read of an object that is given again was made of the version of the header that is there now, \
                and nothing was loaded since.",
            otherwise: "a list is answered as it was before a push that its reader knows of",
            source: "decision 48",
            kept_in: ["crates/resp/src/remembered.rs", "crates/resp/src/command/objects/look.rs"],
            tests: ["a_reply_is_given_again_while_its_object_is_the_same"],
            broken_by: RemembersWithoutVersion "remembers-without-version" "Replies are given again whatever version the object has." [Operand],
        }
        "only-what-is-dead-is-swept" {
            says: "Elements are swept if their object's header, read after they were seen, is of another version, or absent.",
            otherwise: "a live object loses its elements",
            source: "decision 32",
            kept_in: ["crates/pnode/src/frontend/sweeper.rs"],
            tests: ["what_objects_leave_behind_is_swept_and_nothing_else"],
        }
        "a-repeated-command-keeps-its-number" {
            says: "A command that may have taken effect is sent again under the same session and number, and answered what it was.",
            otherwise: "an increment takes effect twice",
            source: "design 3",
            kept_in: ["crates/pnode/src/write/writer.rs", "crates/memtable-server/src/partition/sessions.rs"],
            tests: ["only_certain_answers_allow_a_new_number"],
        }
    }
    } };
}
