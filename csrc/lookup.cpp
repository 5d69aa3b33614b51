#include "lookup.h"

#include <algorithm>
#include <iterator>

namespace headrace {

namespace {

// Looked at in each text, the latest first: more of them find nothing better.
constexpr int kMostPlaces = 8;
// Likeness is not measured further back than this.
constexpr int kMostAlike = 32;
// Odds that the next token repeats where all places agree, by likeness, in one's own text and in others'; the last for
// all that are more alike. Counted over answers of the default model to Spec-Bench and HumanEval; each request's own
// record corrects them (policy/speculation.py).
constexpr double kOwnOdds[] = {0, 0.33, 0.68, 0.8, 0.82, 0.86, 0.88, 0.88, 0.89, 0.89, 0.89, 0.9, 0.9, 0.97};
constexpr double kOthersOdds[] = {0, 0.17, 0.54, 0.66, 0.8, 0.83, 0.85, 0.86, 0.87, 0.87, 0.88, 0.88, 0.88, 0.97};
constexpr int kLongest = std::size(kOwnOdds) - 1;
// What is left of the doubt where so many places agree.
constexpr double kAgreed[] = {1.0, 0.85, 0.72, 0.61};
constexpr int kMostAgreed = std::size(kAgreed);
// A place counts twice as much as one that is less alike by a token, up to so many of them.
constexpr int kMostWeight = 24;
// What a place in another's text counts beside one in one's own.
constexpr double kOthersWeight = 0.25;
// What is less likely to come than this is not followed further: no step is so cheap, and looking takes time too.
constexpr double kLeastChance = 0.1;

// A token that may come next: what speaks for it, the best odds of its places, and how many they are.
struct Candidate {
  int32_t token;
  double weight, best;
  int places;
};

}  // namespace

uint64_t Text::key(size_t end, int run) const {
  uint64_t key = 0;
  for (int back = run; back > 0; --back) key = key << 32 | static_cast<uint32_t>(tokens_[end - back]);
  return key;
}

void Text::extend(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    tokens_.push_back(tokens[i]);
    int32_t before = 0;
    if (tokens_.size() >= static_cast<size_t>(run_)) {
      int32_t& latest = latest_[key(tokens_.size(), run_)];
      before = latest;
      latest = static_cast<int32_t>(tokens_.size());
    }
    before_.push_back(before);
  }
}

void Text::find(const Text& end, std::vector<Place>& places) const {
  if (end.size() < static_cast<size_t>(run_)) return;
  const auto found = latest_.find(end.key(end.size(), run_));
  if (found == latest_.end()) return;
  int left = kMostPlaces;
  for (int place = found->second; place && left; place = before_[place]) {
    if (static_cast<size_t>(place) == size()) continue;
    const int most = std::min({kMostAlike, place, static_cast<int>(end.size())});
    int alike = run_;
    while (alike < most && tokens_[place - 1 - alike] == end[end.size() - 1 - alike]) ++alike;
    places.push_back({alike, this, place});
    --left;
  }
}

Guesses guess(const Text& own, const std::vector<const Text*>& others, int most, double least) {
  Guesses guesses;
  std::vector<Text::Place> places;
  own.find(own, places);
  for (const Text* text : others) text->find(own, places);
  std::vector<Candidate> candidates;
  // Which candidate a place speaks for, -1 for none.
  std::vector<int> choice;
  double chance = 1.0;
  // Go on as the places do, as long as some are left; of those that differ, the likelier lead.
  for (int ahead = 0; ahead < most; ++ahead) {
    candidates.clear();
    choice.assign(places.size(), -1);
    double all = 0.0;
    for (size_t i = 0; i < places.size(); ++i) {
      const auto [same, text, at] = places[i];
      const bool mine = text == &own;
      const size_t next = static_cast<size_t>(at) + ahead;
      // One's own text goes on with what is being guessed, so that a loop may be followed further than it has come.
      if (next >= text->size() && !mine) continue;
      const int32_t token = next < text->size() ? (*text)[next] : guesses.tokens[next - text->size()];
      const int alike = same + ahead;
      const double weight = (1 << std::min(alike, kMostWeight)) * (mine ? 1.0 : kOthersWeight);
      const double odds = (mine ? kOwnOdds : kOthersOdds)[std::min(alike, kLongest)];
      size_t n = 0;
      while (n < candidates.size() && candidates[n].token != token) ++n;
      if (n == candidates.size()) candidates.push_back({token, 0.0, 0.0, 0});
      candidates[n].weight += weight;
      candidates[n].best = std::max(candidates[n].best, odds);
      ++candidates[n].places;
      all += weight;
      choice[i] = static_cast<int>(n);
    }
    if (candidates.empty()) break;
    const auto lead = std::max_element(candidates.begin(), candidates.end(),
                                       [](const Candidate& a, const Candidate& b) { return a.weight < b.weight; });
    const double unsure = (1.0 - lead->best) * kAgreed[std::min(lead->places, kMostAgreed) - 1];
    chance *= (1.0 - unsure) * (lead->weight / all);
    if (chance < least) break;
    least = kLeastChance;
    guesses.tokens.push_back(lead->token);
    guesses.odds.push_back(chance);
    size_t kept = 0;
    for (size_t i = 0; i < places.size(); ++i)
      if (choice[i] == lead - candidates.begin()) places[kept++] = places[i];
    places.resize(kept);
  }
  return guesses;
}

}  // namespace headrace
