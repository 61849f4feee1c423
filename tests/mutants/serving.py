"""Faults of what serves a model: where snapshots are taken, and what a request leaves behind."""

from tests.mutants.base import TIERCACHE, Mutant

ENGINE = "tests/models/test_engine.py::test_"
DECODE = "tests/models/test_decode.py::test_"

MUTANTS = (
    Mutant(
        "the last page boundary is the prompt's end",
        "tiercache/policies.py",
        "wanted |= depth == (length - 1) // page_size * page_size",
        "wanted |= depth == length // page_size * page_size",
        TIERCACHE
        + "faults_snapshots.py::test_a_prompt_of_whole_pages_is_saved_a_page_before_its_end",
        "A match leaves one token to compute, so a snapshot there is never hit.",
    ),
    Mutant(
        "a branch is not saved",
        "tiercache/policies.py",
        "return depth == plan.known_pages * page_size",
        "return depth == plan.kv_pages * page_size + 1",
        TIERCACHE + "policies.py::test_a_third_prompt_resumes_where_the_second_left_the_first",
        "The only snapshot would stand in tokens that nobody else has.",
    ),
    Mutant(
        "decoding takes the place of the prompt's own snapshot",
        "tiercache/policies.py",
        "kept = before <= prompt",
        "kept = before < prompt",
        TIERCACHE + "faults_snapshots.py::test_decoding_leaves_the_snapshot_at_the_prompts_end",
        "Other requests share the prompt.",
    ),
    Mutant(
        "a prefill's snapshot is labelled a page too deep",
        "models/decode.py",
        "jnp.where(offsets > 0, start + offsets, 0),",
        "jnp.where(offsets > 0, start + offsets + spec.page_size, 0),",
        TIERCACHE + "faults_chunks.py::test_every_boundary_inside_a_chunk_gets_its_own_state",
        "The state has not seen the page that it is said to stand after.",
    ),
    Mutant(
        "every boundary of a chunk gets its last state",
        "models/decode.py",
        "at_end = (offsets == count)[:, None]",
        "at_end = (offsets <= count)[:, None]",
        TIERCACHE + "faults_chunks.py::test_every_boundary_inside_a_chunk_gets_its_own_state",
        "A state past its depth, attached to a shorter prefix.",
    ),
    Mutant(
        "decoding labels its snapshot a token early",
        "models/decode.py",
        "            cache.table.lengths, rows.prompt, placement, page_size=spec.page_size\n"
        "        )\n"
        "        cache, _ = tc.save_snapshot(\n"
        "            cache,\n"
        "            jnp.where(runs & due, all_rows, tc.NO_ROW),\n"
        "            cache.table.lengths,\n",
        "            view.lengths, rows.prompt, placement, page_size=spec.page_size\n"
        "        )\n"
        "        cache, _ = tc.save_snapshot(\n"
        "            cache,\n"
        "            jnp.where(runs & due, all_rows, tc.NO_ROW),\n"
        "            view.lengths,\n",
        ENGINE + "a_conversation_goes_on_from_what_was_generated",
        "The state is one token ahead of its pages.",
    ),
    Mutant(
        "a row that was refused its page goes on",
        "models/decode.py",
        "runs = rows.active & reserved.granted",
        "runs = rows.active",
        ENGINE + "a_stalled_row_goes_on_once_there_is_room",
        "Its state moves on while its pages do not.",
    ),
    Mutant(
        "a refused request keeps its row",
        "models/engine.py",
        "        except Refused:\n            self._drop(row_id)\n",
        "        except Refused:\n",
        ENGINE + "a_refused_request_gives_everything_back",
        "Whatever it took by then would leak.",
    ),
)
