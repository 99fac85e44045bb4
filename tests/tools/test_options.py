"""The options and modes of torch.compile: names, types, what a mode sets."""

import pytest

import stepwell
from stepwell.tools.options import MODES, OptionError, Options, make_options


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_its_options(mode):
    assert make_options(mode) == make_options(None, stepwell.list_mode_options(mode))
    assert set(stepwell.list_mode_options(mode)) <= set(stepwell.list_options())


def test_modes_differ_in_what_they_measure():
    assert not make_options("default").autotune and not make_options("reduce-overhead").autotune
    assert make_options("max-autotune").autotune and make_options("max-autotune-no-cudagraphs").autotune
    assert stepwell.list_mode_options() == MODES


def test_listed_options_are_the_defaults():
    """OPT-05"""
    assert make_options(None, stepwell.list_options()) == Options()


def test_what_is_handed_out_can_be_changed():
    stepwell.list_mode_options("max-autotune")["autotune"] = False
    assert make_options("max-autotune").autotune


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("max-autotun", "there is no mode 'max-autotun'; did you mean 'max-autotune' or 'max-autotune-no-cudagraphs'?"),
        ("x1", "there is no mode 'x1'; known: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"),
        ("", "there is no mode ''; known: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"),
    ],
)
def test_unknown_modes(mode, text):
    for ask in (make_options, stepwell.list_mode_options):
        with pytest.raises(OptionError) as caught:
            ask(mode)
        assert str(caught.value) == text


def test_wrong_options():
    """OPT-03"""
    with pytest.raises(OptionError, match="there is no option 'autotun'; did you mean 'autotune'?"):
        make_options(None, {"autotun": True})
    with pytest.raises(OptionError, match="option 'autotune' takes a bool, got 1 "):
        make_options(None, {"autotune": 1})
