"""What csrc/lookup.cpp computes, said as plainly as can be: places by search, candidates by sums over them."""

from __future__ import annotations

_PLACES, _ALIKE, _WEIGHT, _OTHERS, _CHANCE = 8, 32, 24, 0.25, 0.1
_OWN_ODDS = (0.0, 0.33, 0.68, 0.8, 0.82, 0.86, 0.88, 0.88, 0.89, 0.89, 0.89, 0.9, 0.9, 0.97)
_OTHERS_ODDS = (0.0, 0.17, 0.54, 0.66, 0.8, 0.83, 0.85, 0.86, 0.87, 0.87, 0.88, 0.88, 0.88, 0.97)
_AGREED = (1.0, 0.85, 0.72, 0.61)


def guess(own, others, most, least):
    """(tokens, odds) of what may follow `own`."""
    places = _alike(own, own, 1) + [place for text in others for place in _alike(text, own, 2)]
    tokens, odds, chance = [], [], 1.0
    while len(tokens) < most:
        ahead = len(tokens)
        said = {}
        for place in places:
            text, at, same = place
            longer = text + tokens if text is own else text
            if at + ahead < len(longer):
                said.setdefault(longer[at + ahead], []).append((place, same + ahead))
        if not said:
            break
        weights = {token: sum(_weight(place, own, alike) for place, alike in of) for token, of in said.items()}
        lead = max(said, key=weights.__getitem__)
        best = max(_odds(place, own, alike) for place, alike in said[lead])
        unsure = (1 - best) * _AGREED[min(len(said[lead]), len(_AGREED)) - 1]
        chance *= (1 - unsure) * (weights[lead] / sum(weights.values()))
        if chance < least:
            break
        least = _CHANCE
        tokens.append(lead)
        odds.append(chance)
        places = [place for place, _ in said[lead]]
    return tokens, odds


def _alike(text, end, run):
    """(text, place, likeness) of the latest places where the last `run` tokens of `end` stand in `text`."""
    places = [at for at in range(len(text) - 1, run - 1, -1) if len(end) >= run and text[at - run : at] == end[-run:]]
    return [(text, at, _likeness(text[:at], end)) for at in places[:_PLACES]]


def _likeness(one, other):
    same = 0
    while same < min(_ALIKE, len(one), len(other)) and one[-1 - same] == other[-1 - same]:
        same += 1
    return same


def _weight(place, own, alike):
    return 2.0 ** min(alike, _WEIGHT) * (1.0 if place[0] is own else _OTHERS)


def _odds(place, own, alike):
    table = _OWN_ODDS if place[0] is own else _OTHERS_ODDS
    return table[min(alike, len(table) - 1)]
