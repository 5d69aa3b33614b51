// What may follow a text, by what followed earlier places that ended alike: in the text itself, and in others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace headrace {

// A text that grows, and where each short run of its tokens has ended. A place p means that tokens[p:] followed.
class Text {
 public:
  // run: tokens by which places are found, 1 or 2.
  explicit Text(int run) : run_(run) {}

  void extend(const int32_t* tokens, size_t count);

  size_t size() const { return tokens_.size(); }
  int32_t operator[](size_t at) const { return tokens_[at]; }

  struct Place {
    // How many last tokens agree there with the end that was asked for.
    int alike;
    const Text* text;
    int at;
  };
  // Adds the latest places, at most kMostPlaces, that end like `end` and have something after them.
  void find(const Text& end, std::vector<Place>& places) const;

 private:
  struct Mix {
    size_t operator()(uint64_t key) const {
      key *= 0x9E3779B97F4A7C15ull;
      return key ^ key >> 32;
    }
  };

  // Of the run of so many tokens that ends at `end`.
  uint64_t key(size_t end, int run) const;

  int run_;
  std::vector<int32_t> tokens_;
  // By place, the one before it that ended with the same run, 0 for none; and by run the latest.
  std::vector<int32_t> before_{0};
  std::unordered_map<uint64_t, int32_t, Mix> latest_;
};

struct Guesses {
  std::vector<int32_t> tokens;
  // For each, the odds that it and all before it come true.
  std::vector<double> odds;
};

// At most `most` tokens that may follow `own`, as it and `others` go on; none if the first is less likely than `least`.
Guesses guess(const Text& own, const std::vector<const Text*>& others, int most, double least);

}  // namespace headrace
